"""A run: records of a dataset go through a method into files.

What can go wrong, who raises it, who catches it, what is stored, what the user reads, and the exit code:

- **A refused prompt** (a content filter, or a prompt that is too long for the server): engines raise `RefusedError`,
  `calls.answer_call` catches it. The refusal is stored. The piece is null with a `reason`; if at least half of the
  pieces are null, their commonest reasons are printed, exit code 1.
- **A refused parameter**: `APIEngine` leaves it out and asks again. The manifest has `refused_parameters`.
- **An unusable text**: a parser returns no value and a reason. The text is stored, and requested again with another
  seed, --max_retries times; then the piece is null, as for a refused prompt.
- **An outage**: engines raise `UnavailableError` after their own tries; `Steps` catches it and ends the record.
  Nothing is stored. The user reads how many pieces are missing, exit code 1; the same command asks for these alone. A
  server that has never answered is rather a wrong address: `UserError`, exit code 2.
- **A method's own error**: `Method` raises `MethodError` with file and line, the runner notes it. Completions are
  stored. The user reads the commonest errors with ids, exit code 1.
- **A damaged file**: whoever reads it raises `UserError` with file and line, exit code 2. Nothing is overwritten.
- **A user's mistake**: `UserError` with what to do, if possible before the first request, exit code 2.
- **A disk that is full or a signal**: `cli.run_script` says so; exit code 2, or 1 if the disk may come back, or 130.
  What has arrived is stored.
- **A bug of ours**: never caught; a traceback, exit code 1.

`NotStoredError` is not a failure: the record waits until the engine is open that can give a completion. For a method,
each call that cannot be answered now raises `NotNow`, whatever the reason; `Steps` has noted it.
"""
