//! Surroundings of functions in their thread and process: arithmetic as usual, and teams of threads of the size of their slot.

use hotlease_client::{Code, Invoker};
use hotlease_tests::library;
use hotlease_tests::platform::Platform;

fn surroundings(platform: &Platform) -> Invoker {
    let path = library::compile("surroundings", &["-fopenmp", "-lm"]);
    let code = Code::open(path).unwrap();
    Invoker::allocate(&code, platform.lease_options()).unwrap()
}

#[test]
fn neither_loading_nor_calls_change_the_arithmetic_of_later_calls() {
    let platform = Platform::start();
    let invoker = surroundings(&platform);
    let arithmetic = invoker.function("arithmetic").unwrap();
    assert_eq!(arithmetic.call(&[]).unwrap(), [1, 1], "after loading");
    invoker.function("changes_arithmetic").unwrap().call(&[]).unwrap();
    assert_eq!(arithmetic.call(&[]).unwrap(), [1, 1], "after a call");
}

#[test]
fn a_parallel_loop_has_one_thread_for_each_core_of_its_slot() {
    let platform = Platform::start();
    let invoker = surroundings(&platform);
    if std::env::var_os("OMP_NUM_THREADS").is_none() {
        assert_eq!(invoker.function("team_size").unwrap().call(&[]).unwrap(), [1]);
    }
    let variable = invoker.function("variable").unwrap();
    for name in [
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "RAYON_NUM_THREADS",
    ] {
        let value = variable.call(name.as_bytes()).unwrap();
        // Who runs these tests may have set it for the agent.
        let expected = std::env::var(name).unwrap_or_else(|_| "1".to_owned());
        assert_eq!(value, expected.as_bytes(), "{name}");
    }
}
