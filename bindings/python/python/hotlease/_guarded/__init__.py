"""Results of workers in sandboxes, which are read as untrusted: no code of the sandbox may run in the program.

| module | what it holds |
|---|---|
| `names` | what a result may name, apart from the program's own classes |
| `reader` | the program's side: reads results and exceptions |
| `collisions` | its unpickler for results with many keys, which may have been chosen to collide |
| `writer` | the worker's side: pickles in the form that the reader takes |
| `arrays` | objects of numpy in that form, for both sides |
"""
