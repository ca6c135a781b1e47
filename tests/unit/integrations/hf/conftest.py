import os
import sys
from pathlib import Path

# Nothing here needs the network, and nothing may try it.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))
