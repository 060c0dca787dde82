// The switch between versions, where the site lies beside others (.ci/add_site.py); elsewhere nothing happens.
const above = new URL(`${document.documentElement.dataset.content_root || "./"}../`, location.href);
const own = new URL(document.documentElement.dataset.content_root || "./", location.href).href;

if (location.protocol.startsWith("http"))
  fetch(new URL("versions.json", above))
    .then((answer) => (answer.ok ? answer.json() : []))
    .then((versions) => {
      const brand = document.querySelector(".sidebar-brand");
      if (!brand || versions.length < 2) return;
      const list = document.createElement("select");
      list.className = "versions";
      list.setAttribute("aria-label", "Version of this site");
      for (const version of versions) {
        const address = new URL(`${version}/`, above).href;
        list.append(new Option(version, address, false, address === own));
      }
      list.addEventListener("change", () => (location.href = `${list.value}index.html`));
      brand.after(list);
    })
    .catch(() => null);
