"""The command `paceline`: starts the services on this machine and talks to a running gateway."""
