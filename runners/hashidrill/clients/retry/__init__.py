"""Does a client retry, and does it retry well? A tap in front of the upstream, and verdicts over what came through.

`tap.Tap` is the proxy that fails attempts by plan and records each of them; `battery.run_battery` runs a command
behind it once for each fault; `verdicts` judges the attempts; `catalogue` names faults and verdicts.
"""
