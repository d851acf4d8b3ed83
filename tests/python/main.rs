//! Black-box tests of Python workers, with requests made by hand as `bindings/python/FORMAT.md` defines them: the
//! requests of the package's own client are tested with the package. Each test is named by the promise that it proves.

mod deaths;
// Files of the Python extension that use nothing of Python. `cargo test` cannot run the extension's own tests.
#[path = "../../bindings/python/src/mpi/layout.rs"]
#[allow(dead_code, reason = "only its tests are used here")]
mod layout;
mod left;
mod native;
#[path = "../../bindings/python/src/task_output.rs"]
mod printed;
mod prints;
mod refused;
mod requests;
#[path = "../../bindings/python/src/client/core/room_notices.rs"]
#[allow(dead_code, reason = "only its tests are used here")]
mod room_notices;
mod starts;
mod states;
mod tasks;
mod versions;
mod yields;
