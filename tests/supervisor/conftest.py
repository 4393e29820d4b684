import sys
from pathlib import Path

# Tests import their neighbours by name; --import-mode=importlib adds no folder to the path by itself.
sys.path.insert(0, str(Path(__file__).parent))
