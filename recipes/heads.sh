#!/bin/sh
# Every number and figure of docs/heads.md, from text to table: one training of each method on Multi30k, one command a line.
#
#   sh recipes/heads.sh                 # everything
#   sh recipes/heads.sh measure tables  # only what comes after the trainings
#
# Run it where data/multi30k holds the corpus. What is there already is not made again, and a training that was
# interrupted goes on where it stopped, so run it again after a break. On two CPU cores `train` takes about four hours,
# `methods` half an hour, `measure` ten minutes, `tables` seconds.
set -eu

HMC=${HMC:-hmc}                              # the command
PYTHON=${PYTHON:-python3}                    # of the same environment
RECIPES=${RECIPES:-recipes}
DATA=${DATA:-data/multi30k}
RUNS=${RUNS:-runs/heads}                     # trainings of this script
DEMO=${DEMO:-runs/demo}                      # first stage of the embedded model
FULL=${FULL:-runs/demo-tuned}                # its second stage: the model that L0 prunes
LONG=${LONG:-runs/demo-pruned}               # its longer pruning, with nested fine-tuning
OUT=${OUT:-$RUNS/report}                     # JSON data and figures
REPORT=${REPORT:-docs/heads.md}              # the report; its figures go to the folder of the same name
SEEDS=${SEEDS:-1 2 3}
BUDGETS=${BUDGETS:-120 72 36 18 10}
CURVE_SENTENCES=${CURVE_SENTENCES:-300}      # of the test set, greedy: 32 masks a model

TRAIN="$DATA/train.en.gz $DATA/train.de.gz"
DEV="$DATA/val.en.gz $DATA/val.de.gz"
TEST_EN=${TEST_EN:-$DATA/test_2016_flickr.en.gz}
TEST_DE=${TEST_DE:-$DATA/test_2016_flickr.de.gz}
SHORT="--close-steps 150 --recover-steps 100 --precision bf16-mixed --eval-sentences 200"
commas() { echo "$*" | tr ' ' ','; }

# once FILE COMMAND…: runs the command unless FILE, which it leaves behind at its end, is there.
once() { file=$1; shift; [ -e "$file" ] || "$@"; }

# bundle FOLDER CHECKPOINTS…: levels scored on the test set at beam 4; the folder appears when they are.
bundle() {
    folder=$1; shift
    [ -e "$folder" ] && return
    rm -rf "$folder.part"
    $HMC compile "$@" --eval "$TEST_EN" "$TEST_DE" -o "$folder.part"
    mv "$folder.part" "$folder"
}

train() {
    # Baseline, Random-N and Impt-N (Sun et al. 2021)
    once "$RUNS/baseline/final" $HMC train "$RECIPES/small.toml" --out "$RUNS/baseline"
    once "$RUNS/random/final" $HMC train "$RECIPES/small.toml" --headmask random:18 --out "$RUNS/random"
    once "$RUNS/important/final" $HMC train "$RECIPES/small.toml" --headmask important:18 --out "$RUNS/important"

    # The embedded model before pruning
    once "$DEMO/final" $HMC train "$RECIPES/demo.toml" --out "$DEMO"
    once "$FULL/final" $HMC train "$RECIPES/demo-tuned.toml" --out "$FULL"

    # L0 gates to exact budgets (Voita et al. 2019, section 6), short, three seeds
    for seed in $SEEDS; do
        once "$RUNS/seed$seed/h10" $HMC prune "$FULL/final" --target-heads "$(commas $BUDGETS)" $SHORT --seed "$seed" --data "$TRAIN" --dev "$DEV" --out "$RUNS/seed$seed"
    done

    # The same, longer, then nested fine-tuning: one set of weights for all budgets
    once "$LONG/nested" $HMC prune "$FULL/final" --target-heads 72,36 --close-steps 1000 --recover-steps 800 --nested-steps 2000 --dropout 0.15 --precision bf16-mixed --eval-sentences 400 --data "$TRAIN" --dev "$DEV" --out "$LONG"
}

methods() {
    # Gates with λ on the encoder alone, the decoder frozen (Voita et al. 2019, section 6.2)
    once "$RUNS/lambda/pruned" $HMC prune "$RUNS/baseline/final" --l0-lambda 0.02 --scope encoder_self --freeze decoder $SHORT --data "$TRAIN" --dev "$DEV" --out "$RUNS/lambda"

    # A larger λ closes more heads (figure 8)
    for strength in 0.005 0.02 0.08; do
        once "$RUNS/lam$strength/pruned" $HMC prune "$RUNS/baseline/final" --l0-lambda "$strength" $SHORT --data "$TRAIN" --dev "$DEV" --out "$RUNS/lam$strength"
    done

    # Trained with gates, and from scratch with the layout that they chose (Voita et al. 2019, table 2)
    once "$RUNS/pruned/h36" $HMC prune "$RUNS/baseline/final" --target-heads 36 $SHORT --data "$TRAIN" --dev "$DEV" --out "$RUNS/pruned"
    once "$RUNS/scratch/final" $HMC train "$RECIPES/small.toml" --layout "$RUNS/pruned/h36" --out "$RUNS/scratch"
    mkdir -p "$OUT/bundles"
    bundle "$OUT/bundles/scratch" full="$RUNS/baseline/final" lambda="$RUNS/lambda/pruned" pruned="$RUNS/pruned/h36" scratch="$RUNS/scratch/final"
    once "$OUT/scratch/budgets.json" $HMC analyze budgets methods="$OUT/bundles/scratch" --out "$OUT/scratch"
}

measure() {
    mkdir -p "$OUT/bundles"

    # HeadMask: importance on the dev set; groups of 18 heads and curves on the test set, ranked by that importance
    for model in baseline random important; do
        once "$OUT/$model/importance.json" $HMC analyze importance "$RUNS/$model/final" --data "$DEV" --out "$OUT/$model"
        once "$OUT/$model/groups.json" $HMC analyze groups "$RUNS/$model/final" --data "$TEST_EN $TEST_DE" --sentences "$CURVE_SENTENCES" --scores "$OUT/$model/importance.json" --out "$OUT/$model"
        once "$OUT/$model/cumulative.json" $HMC analyze cumulative "$RUNS/$model/final" --data "$TEST_EN $TEST_DE" --sentences "$CURVE_SENTENCES" --groups 16 --scores "$OUT/$model/importance.json" --out "$OUT/$model"
    done
    for result in importance groups cumulative; do
        once "$OUT/compare-$result/compare.json" $HMC analyze compare baseline="$OUT/baseline/$result.json" Random-18="$OUT/random/$result.json" Impt-18="$OUT/important/$result.json" --out "$OUT/compare-$result"
    done
    bundle "$OUT/bundles/headmask" baseline="$RUNS/baseline/final" Random-18="$RUNS/random/final" Impt-18="$RUNS/important/final"
    once "$OUT/headmask/budgets.json" $HMC analyze budgets HeadMask="$OUT/bundles/headmask" --out "$OUT/headmask"

    # L0: which heads stay, what they cost, how gates close
    levels="full=$FULL/final" checkpoints="" runs=""
    for seed in $SEEDS; do
        runs="$runs seed-$seed=$RUNS/seed$seed/trajectory.json"
        for heads in $BUDGETS; do
            levels="$levels s$seed-h$heads=$RUNS/seed$seed/h$heads"
            checkpoints="$checkpoints $RUNS/seed$seed/h$heads"
        done
    done
    once "$OUT/full/importance.json" $HMC analyze importance "$FULL/final" --data "$DEV" --out "$OUT/full" --save "$OUT/ranked"
    once "$OUT/survivors/survivors.json" $HMC analyze survivors $checkpoints --scores "$OUT/full/importance.json" --out "$OUT/survivors"
    once "$OUT/trajectory/trajectory.json" $HMC analyze trajectory $runs --out "$OUT/trajectory"
    bundle "$OUT/bundles/l0" $levels
    bundle "$OUT/bundles/long" full="$FULL/final" h72="$LONG/h72" h36="$LONG/h36"
    bundle "$OUT/bundles/nested" "$LONG/nested" --target-heads 144,72,36
    bundle "$OUT/bundles/ranked" "$OUT/ranked" --target-heads "144,$(commas $BUDGETS)"
    once "$OUT/budgets/budgets.json" $HMC analyze budgets L0="$OUT/bundles/l0" L0-longer="$OUT/bundles/long" nested="$OUT/bundles/nested" by-importance="$OUT/bundles/ranked" --out "$OUT/budgets"
}

tables() {
    figures=${REPORT%.md}
    mkdir -p "$figures"
    cp "$OUT/compare-importance/compare.svg" "$figures/importance.svg"
    cp "$OUT/compare-groups/compare.svg" "$figures/groups.svg"
    cp "$OUT/compare-cumulative/compare.svg" "$figures/cumulative.svg"
    cp "$OUT/survivors/survivors.svg" "$figures/survivors.svg"
    cp "$OUT/budgets/budgets.svg" "$figures/budgets.svg"
    cp "$OUT/trajectory/trajectory.svg" "$figures/trajectory.svg"
    "$PYTHON" "$RECIPES/heads_tables.py" "$OUT" "$REPORT"
}

for stage in ${*:-train methods measure tables}; do
    case $stage in
        train | methods | measure | tables) "$stage" ;;
        *) echo "heads.sh: unknown stage $stage; choose from train, methods, measure, tables" >&2; exit 2 ;;
    esac
done
