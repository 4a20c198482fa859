"""A run: a method answers the records of a dataset, and the results are written to files.

For each kind of failure: who raises it, who catches it, what is stored, what the user reads, and the exit code.

- **A refused prompt** (a content filter, or a prompt that is too long for the server): engines raise `RefusedError`,
  `calls.answer_call` catches it. The refusal is stored. The piece has a null value and a `reason`. If at least half
  of the pieces are null, the most common reasons are printed and the exit code is 1.
- **A refused parameter**: `APIEngine` repeats the request without it. The manifest lists `refused_parameters`.
- **An unusable text**: a parser returns a reason instead of a value. The text is stored, and a new one is requested
  with another seed, up to --max_retries times. After that, the piece is null, as for a refused prompt.
- **An outage**: engines raise `UnavailableError` after their own retries; `Steps` catches it and ends the record.
  Nothing is stored. The user reads how many pieces are missing; exit code 1. The same command then requests only the
  missing pieces. If a server has never answered, its address is probably wrong: `UserError`, exit code 2.
- **A method's own error**: `Method` raises `MethodError` with file and line, and the runner notes it. Completions are
  stored. The user reads the most common errors with question ids; exit code 1.
- **A damaged file**: its reader raises `UserError` with file and line, exit code 2. Nothing is overwritten.
- **A user's mistake**: `UserError` that says what to do, if possible before the first request; exit code 2.
- **A full or failed disk, or a signal**: `cli.run_script` prints a message. The exit code is 2 for a full disk, 1 for
  a disk that failed, and 130 for a signal. Completions that have arrived are stored.
- **A bug of this project**: never caught; a traceback, exit code 1.

`NotStoredError` is not a failure: the record waits until the engine that can give the completion is open. Inside a
method, every call that cannot be answered now raises `NotNow`; `Steps` notes the actual reason.
"""
