"""Programs that run in the game's sandbox, next to the hosts; standard library only."""
