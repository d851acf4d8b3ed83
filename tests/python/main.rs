//! Black-box tests of Python workers, with requests made by hand as `bindings/python/FORMAT.md` defines them: the
//! requests of the package's own client are tested with the package. Each test is named by the promise that it proves.

mod deaths;
mod left;
mod native;
#[path = "../../bindings/python/src/task_output.rs"]
mod printed;
mod prints;
mod refused;
mod requests;
mod starts;
mod states;
mod tasks;
mod versions;
mod yields;
