"""Reading of results from sandboxes. Results are untrusted: no code of the sandbox may run in the program.

| module | what it holds |
|---|---|
| `names` | what a result may name, apart from the program's own classes |
| `reader` | the program's side: reads results and exceptions |
| `collisions` | the program's unpickler for results with many keys, whose hashes may have been chosen to collide |
| `writer` | the worker's side: pickles in the form that the reader accepts |
| `arrays` | objects of numpy in the form that the reader accepts, for both sides |
"""
