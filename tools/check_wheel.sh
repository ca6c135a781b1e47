#!/usr/bin/env bash
# Builds the wheel and tries it in an empty environment: import, commands, the demo.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/env"
"$work/env/bin/pip" wheel --quiet --no-deps --wheel-dir "$work" .
"$work/env/bin/pip" install --quiet --constraint constraints.txt "$work"/steadygrad-*.whl
cd "$work"
"$work/env/bin/python" -c 'import steadygrad; print("steadygrad", steadygrad.__version__)'
"$work/env/bin/steady" --help > help.txt
"$work/env/bin/steady" explain SY101 > explain.txt
"$work/env/bin/steady" demo --help > /dev/null
printf 'import torch\nmodel = torch.nn.Linear(2, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nfor step in range(5):\n    loss = model(torch.full((4, 2), float("nan") if step == 2 else 1.0)).mean()\n    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n' > train.py
"$work/env/bin/steady" run --run-dir run train.py
"$work/env/bin/steady" report run --output report.html > /dev/null
test -s report.html
echo "the wheel works in an empty environment"
