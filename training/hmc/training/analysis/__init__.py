"""Analyses of the heads of a trained model, one per subcommand of `hmc analyze`.

Each analysis has a function `analyse`, which returns a `Result` (data for a JSON file), and a function `summary`, which
makes a short table of it. `figures` draws results. Layers: `common` below `masking`, `attention`, `relevance` and
`roles`, then `across`, then `figures`. Of the rest of `hmc.training` only `data` and `model` are imported.
"""
