"""python -m attsvm"""

from attsvm.cli import app

if __name__ == "__main__":
    app()
