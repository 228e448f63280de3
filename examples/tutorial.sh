#!/usr/bin/env bash
# The tutorial (docs/tutorial.md) as a script, which `make docs` writes. Run it in an empty folder:
#
#   bash ../hmc/examples/tutorial.sh
#
# It installs HMC from its own folder into .venv there, and takes about ten minutes on two cores.
set -euo pipefail
HMC=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
trap 'kill $(jobs -p) 2>&- || true' EXIT

echo '== 1. Install'
python3 -m venv .venv && . .venv/bin/activate
pip install "$HMC[demo]"
hmc --version

echo '== 2. See all of it at once'
hmc demo

echo '== 3. Compile'
DATA=$(python3 -c 'from hmc.cli import demo_steps; print(demo_steps.DATA)')
hmc compile full=$DATA/checkpoint h75=$DATA/levels fast=$DATA/fast --precision int8 \
      --calibrate $DATA/calibration.en --eval $DATA/test.en $DATA/test.de -o bundle
hmc levels bundle

echo '== 4. Serve'
hmc serve bundle --port 50051 &
hmc health --server localhost:50051 --timeout 60
hmc translate --server localhost:50051 "A dog runs across the grass."
hmc translate --server localhost:50051 --level h75-int8 "A dog runs across the grass."
hmc translate --server localhost:50051 --max-bleu-drop 2 --json "Two men play chess in the park."
hmc admin status --server localhost:50051
python3 - <<'END'
from hmc.serving.client import Client

with Client("localhost:50051") as client:
    answer = client.translate(["A dog runs across the grass."], level="h75-int8")
    print(answer[0].text, answer.level)
END
kill $(jobs -p) && wait

echo '== 5. Measure'
hmc bench bundle --source $DATA/test.en --reference $DATA/test.de --batch 1,32 --beam 4 --rounds 3 --latency-limit 32 -o report.json
