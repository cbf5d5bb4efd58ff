"""`python -m tests.faults.storm --seed N --duration S`: every role killed, stopped and restarted at random.

- Real servers, processes and signals: SIGKILL at any instant, SIGSTOP longer than a lease and then SIGCONT (the role
  comes back as a zombie that others have taken over from), a second learner, and power cuts: all at once.
- After the last kill the run must finish; then `checker` says whether every promise was kept.
- Exit code 0 only if it was and nothing was seen that nobody foresaw. A storm of five minutes or more must also have
  been one, and the run must have finished within a minute (`tally`); of a shorter one that is only told. After any
  other exit code everything that helps to find out why stays in the directory that is named.

The seed decides what is done and when; how the processes run in between is the machine's.

`settings`: what the seed draws. `course`: a storm from its beginning to its end. `raging`: what is done to the roles.
`processes`, `keeper`: the processes, found, signalled and kept. `roles`, `prompts`, `made_up`: what they run.
`looking`: who looks on, and what is found in the end. `tally`: what was done, and whether that was a storm.
"""
