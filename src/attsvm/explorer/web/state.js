// The state: one plain object that fits into the address, and its problem.

/** The exponent of the norm, in which the address and JSON write ∞ as "inf". */
export const exponent = (p) => (p === "inf" ? Infinity : p);
export const written = (p) => (p === Infinity ? "inf" : p);

export const isWeight = (state) => state.inputs[0].query.length === 2;

/** Whether factors are trained: of a prompt p = k ⊙ q, of a weight W = K Qᵀ. */
export const isFactored = (state) => state.trained === "kq";
export const isKeyQuery = (state) => isFactored(state) && isWeight(state);

/** The problem of the engine: tokens, queries, labels and the scores γ = Y v·x, or Y times those set by hand. */
export function problemOf(state) {
  return {
    inputs: state.inputs.map(({ tokens, label, query, scores }) => ({
      tokens,
      label,
      query,
      scores: tokens.map((x, t) => label * (state.byHead ? state.head[0] * x[0] + state.head[1] * x[1] : scores[t])),
    })),
  };
}

/** The starting weights: given points, or a ring of them. */
export function startsOf({ starts }) {
  if (starts.points) return starts.points;
  return Array.from({ length: starts.ring }, (_, k) => {
    const angle = (2 * Math.PI * (k + 0.5)) / starts.ring;
    return [starts.radius * Math.cos(angle), starts.radius * Math.sin(angle)];
  });
}

// ---------------------------------------------------------------- the address

export function encoded(state) {
  const bytes = new TextEncoder().encode(JSON.stringify(state));
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");
}

/** The fields in an address, to be checked by `fields`; null if there are none. */
export function decoded(text) {
  try {
    const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    return JSON.parse(new TextDecoder().decode(Uint8Array.from(binary, (letter) => letter.charCodeAt(0))));
  } catch {
    return null;
  }
}

// ---------------------------------------------------------------- the file

/** The problem as arrays that attsvm reads (Tokens.load, attsvm solve), and the state under "explorer". */
export function arraysOf(state, selected) {
  const T = Math.max(...state.inputs.map(({ tokens }) => tokens.length));
  const padded = (list, empty) => [...list, ...new Array(T - list.length).fill(empty)];
  const file = {
    keys: state.inputs.map(({ tokens }) => padded(tokens, [0, 0])),
    labels: state.inputs.map(({ label }) => label),
    mask: state.inputs.map(({ tokens }) =>
      padded(
        tokens.map(() => true),
        false,
      ),
    ),
    selected: state.inputs.map(({ tokens }, i) =>
      padded(
        tokens.map((_, t) => selected[i].includes(t)),
        false,
      ),
    ),
  };
  if (isWeight(state) || state.inputs.some(({ query }) => query[0] !== 1))
    file.queries = state.inputs.map(({ query }) => query);
  if (state.byHead) file.v = state.head;
  else {
    file.values = state.inputs.map(({ scores }) =>
      padded(
        scores.map((s) => [s]),
        [0],
      ),
    );
    file.v = [1];
  }
  return { ...file, explorer: state };
}

// ---------------------------------------------------------------- changes

export function addToken(state, input, place) {
  const each = state.inputs[input];
  each.tokens.push(place);
  each.scores.push(0);
  return each.tokens.length - 1;
}

export function removeToken(state, input, token) {
  const each = state.inputs[input];
  if (each.tokens.length === 1) return removeInput(state, input);
  each.tokens.splice(token, 1);
  each.scores.splice(token, 1);
  each.chosen = each.chosen.filter((t) => t !== token).map((t) => (t > token ? t - 1 : t));
  if (!each.chosen.length) each.chosen = [0];
  return undefined;
}

export function addInput(state, tokens) {
  const query = state.inputs[0].query.length === 2 ? [1, 0] : [1];
  state.inputs.push({ tokens, label: 1, query, scores: tokens.map((_, t) => (t ? 0 : 1)), chosen: [0] });
}

export function removeInput(state, input) {
  if (state.inputs.length === 1) return;
  state.inputs.splice(input, 1);
  state.focus = Math.min(state.focus, state.inputs.length - 1);
}

/** Select a token by hand; `more` adds it to the tied tokens or removes it. */
export function choose(state, selected, input, token, more) {
  state.inputs.forEach((each, i) => (each.chosen = [...selected[i]]));
  state.choose = "hand";
  const each = state.inputs[input];
  if (!more) each.chosen = [token];
  else if (!each.chosen.includes(token)) each.chosen = [...each.chosen, token].sort((a, b) => a - b);
  else if (each.chosen.length > 1) each.chosen = each.chosen.filter((t) => t !== token);
}
