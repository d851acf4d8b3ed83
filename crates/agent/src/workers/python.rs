//! Workers that are Python interpreters: the program that a request describes.

use hotlease_sandbox::{KeepAlive, Program};
use hotlease_wire::Rejection;
use hotlease_wire::grpc::PythonRuntime;
use hotlease_wire::python::{BYTES_MAX, EXPECTED, IMPORTS, PATH, decode_path, join_path};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// Time in which an interpreter must be ready: it imports from disks that may be slow, or cold. A client waits 10 s for
/// its workers, and should receive the reason.
pub(crate) const INTERPRETER_START_LIMIT: Duration = Duration::from_secs(9);

/// Code that an interpreter runs. It is not started by `-m`, because functions of the client's `__main__` must not find
/// hotlease's names there. It removes the current folder from the import path, so that nothing is imported from there
/// unless the client's path names the folder. `begun`: start time of the imports; the worker removes the name.
const INTERPRETER_CODE: &str = "\
import sys
begun = __import__('time').monotonic_ns()
sys.path[:1] == [''] and sys.path.pop(0)
try:
    from hotlease._slot import main
except ModuleNotFoundError as error:
    if error.name != 'hotlease':
        raise
    sys.exit(f'{sys.executable} has no package hotlease: install the client\\'s version there')
main()
";

/// Environment variable by which an interpreter learns that it waits for a lease, and has time for more imports.
pub(crate) const SPARE: &str = "HOTLEASE_PYTHON_SPARE";

/// Environment variable by which an interpreter learns that workers are to be forked from it.
pub(crate) const ZYGOTE: &str = "HOTLEASE_PYTHON_ZYGOTE";

/// Modules that workers of this program import before they are ready for orders, if any.
pub(crate) fn imports(program: &Program) -> Option<&OsStr> {
    let mut named = program.environment.iter().filter(|(name, _)| name == IMPORTS);
    named
        .next()
        .map(|(_, names)| names.as_os_str())
        .filter(|names| !names.is_empty())
}

/// The program, with one more environment variable.
pub(crate) fn with_variable(program: &Program, variable: &str) -> Program {
    let mut program = Program::clone(program);
    program.environment.push((variable.into(), "1".into()));
    program
}

/// Largest number of environment variables of a request.
const VARIABLES_MAX: usize = 1024;

/// Program of the workers of a lease. It may be any program that the tenant can run, just as libraries may be any code.
/// `image`: path at which workers see the image that the request names.
pub(crate) fn program(asked: PythonRuntime, image: Option<&Path>) -> Result<Program, Rejection> {
    let bad = |what: &str| Err(Rejection::BadRequest { what: what.into() });
    let PythonRuntime {
        interpreter,
        environment,
        path,
        directory,
        python,
        hotlease,
        cloudpickle,
        image: _,
    } = asked;
    let words = environment.iter().flat_map(|(name, value)| [name, value]);
    let versions = [&python, &hotlease, &cloudpickle];
    let words = words.chain(&path).chain(versions).chain([&interpreter, &directory]);
    let (mut bytes, mut nul) = (0, false);
    for word in words {
        bytes += word.len() + 2;
        nul |= word.contains('\0');
    }
    let mut paths = path.iter().chain([&interpreter, &directory]);
    nul |= paths.any(|path| decode_path(path).as_bytes().contains(&0));
    if bytes > BYTES_MAX || environment.len() > VARIABLES_MAX {
        return bad("the environment and import path of Python workers are too large");
    }
    if nul || environment.keys().any(|name| name.is_empty() || name.contains('=')) {
        return bad(
            "the environment or the import path of Python workers has a NUL byte, or a variable whose name is empty or has `=` in it",
        );
    }
    let interpreter = PathBuf::from(decode_path(&interpreter));
    let interpreter = match image {
        None if !interpreter.is_absolute() => {
            return bad("the Python interpreter must be an absolute path");
        }
        None => interpreter,
        Some(image) => image.join(within_image(interpreter)?),
    };
    if versions.iter().any(|version| version.contains(char::is_whitespace)) {
        return bad("a version of Python or of a package has spaces in it");
    }
    let mut environment: Vec<(OsString, OsString)> = environment
        .into_iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
    // The message's map has a random order. Without sorting, equal programs would differ, and few spares could be used.
    environment.sort();
    let expected = format!("python={python} hotlease={hotlease} cloudpickle={cloudpickle}");
    environment.push((EXPECTED.into(), expected.into()));
    let path: Vec<OsString> = path.iter().map(|folder| decode_path(folder)).collect();
    environment.push((PATH.into(), join_path(path.iter().map(OsString::as_os_str))));
    Ok(Program {
        path: interpreter,
        arguments: vec!["-c".into(), INTERPRETER_CODE.into()],
        environment,
        directory: decode_path(&directory).into(),
        mounts: Vec::new(),
        held: KeepAlive::default(),
    })
}

/// Path of an interpreter within an image, checked.
pub(crate) fn within_image(interpreter: impl Into<PathBuf>) -> Result<PathBuf, Rejection> {
    let path: PathBuf = interpreter.into();
    let is_within = path.components().all(|part| matches!(part, Component::Normal(_)));
    match is_within && !path.as_os_str().is_empty() {
        true => Ok(path),
        false => Err(Rejection::BadRequest {
            what: "the Python interpreter of an environment must be a path in it, such as bin/python".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> PythonRuntime {
        PythonRuntime {
            interpreter: "/usr/bin/python3".into(),
            python: "3.11.2".into(),
            hotlease: "0.1.0".into(),
            ..PythonRuntime::default()
        }
    }

    #[test]
    fn the_same_request_is_the_same_program_each_time() {
        let variables = || (0..8).map(|number| (format!("V{number}"), "x".to_owned()));
        let made = || {
            let environment = variables().collect();
            let asked = PythonRuntime { environment, ..asked() };
            program(asked, None).expect("good")
        };
        let first = made();
        assert!((0..32).all(|_| made() == first), "a spare would not be known again");
    }

    #[test]
    fn folders_of_any_name_reach_the_worker() {
        let request = PythonRuntime {
            interpreter: "/caf%E9/100%25/python".into(),
            path: vec!["/12:30".into(), "/caf%E9".into()],
            directory: "/caf%E9".into(),
            ..asked()
        };
        let made = program(request, None).expect("good");
        assert_eq!(made.path.as_os_str().as_bytes(), b"/caf\xe9/100%/python");
        assert_eq!(made.directory.as_os_str().as_bytes(), b"/caf\xe9");
        let (_, path) = made.environment.iter().find(|(name, _)| name == PATH).expect("a path");
        assert_eq!(path.as_bytes(), b"/12%3A30:/caf\xe9");
    }

    #[test]
    fn versions_and_import_path_reach_the_worker_and_nonsense_does_not() {
        let request = PythonRuntime {
            path: vec!["/a".into(), "/b".into()],
            ..asked()
        };
        let made = program(request, None);
        let made = made.expect("good");
        let value = |name: &str| {
            let found = made.environment.iter().find(|(theirs, _)| theirs == name);
            found.and_then(|(_, value)| value.to_str()).map(str::to_owned)
        };
        assert_eq!(
            value(EXPECTED).as_deref(),
            Some("python=3.11.2 hotlease=0.1.0 cloudpickle=")
        );
        assert_eq!(value(PATH).as_deref(), Some("/a:/b"));
        let spoiled: [fn(&mut PythonRuntime); 7] = [
            |asked| asked.interpreter = "python3".into(),
            |asked| asked.python = "3.11 hotlease=9".into(),
            |asked| asked.path = vec!["x".repeat(BYTES_MAX)],
            |asked| drop(asked.environment.insert("A=B".into(), String::new())),
            |asked| drop(asked.environment.insert(String::new(), String::new())),
            |asked| asked.directory = "/a\0b".into(),
            |asked| asked.directory = "/a%00b".into(),
        ];
        for (number, spoil) in spoiled.into_iter().enumerate() {
            let mut request = asked();
            spoil(&mut request);
            assert!(program(request, None).is_err(), "request {number} was let through");
        }
    }

    #[test]
    fn an_image_s_interpreter_is_in_the_image() {
        let of = |interpreter: &str| {
            let request = PythonRuntime {
                interpreter: interpreter.into(),
                ..asked()
            };
            program(request, Some(Path::new("/data/ann/venv"))).map(|program| program.path)
        };
        assert_eq!(of("bin/python"), Ok("/data/ann/venv/bin/python".into()));
        for outside in ["", "/usr/bin/python3", "../bin/python", "bin/../../x", "./bin/python"] {
            assert!(of(outside).is_err(), "{outside:?} was let through");
        }
    }
}
