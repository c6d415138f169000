"""Game days with people: plans, runbooks, training, the war room, the history of runs, schedules."""
