//! Default label of a lease: the script or program that holds it, and its process.

use hotlease_wire::limits::LABEL_BYTES_MAX;
use std::fs;
use std::path::Path;

/// Label of this process: `train.py (pid 4242)`.
pub(super) fn of_this_process() -> String {
    let command = fs::read("/proc/self/cmdline").unwrap_or_default();
    let arguments: Vec<_> = command.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let arguments: Vec<&str> = arguments.iter().map(AsRef::as_ref).collect();
    let notebook = std::env::var("JPY_SESSION_NAME").ok();
    let program = std::env::current_exe().unwrap_or_default();
    let name = match script(&arguments) {
        Some("ipykernel_launcher") if notebook.is_some() => notebook.unwrap_or_default(),
        Some(script) => script.to_owned(),
        None => program.display().to_string(),
    };
    label(&name, std::process::id())
}

/// Label of a process that runs the file of this path, cut to the length of a label.
fn label(path: &str, pid: u32) -> String {
    let end = format!(" (pid {pid})");
    let mut name = Path::new(path)
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    name.retain(|c| !c.is_control());
    while name.len() + end.len() > LABEL_BYTES_MAX {
        name.pop();
    }
    name + &end
}

/// Script or module that a Python interpreter runs, by its command line; `None` if it runs neither, or if the program
/// is no Python interpreter.
fn script<'a>(arguments: &[&'a str]) -> Option<&'a str> {
    let (program, rest) = arguments.split_first()?;
    let program = Path::new(program).file_name()?.to_str()?;
    if !program.starts_with("python") && !program.starts_with("pypy") {
        return None;
    }
    let mut rest = rest.iter().copied();
    while let Some(argument) = rest.next() {
        match argument {
            "-X" | "-W" | "--check-hash-based-pycs" => drop(rest.next()),
            "" | "-" => return None,
            long if long.starts_with("--") => {}
            // If an argument has several letters, the last is the option that takes the next argument.
            short if short.starts_with('-') => match short.as_bytes().last() {
                Some(b'm') => return rest.next(),
                Some(b'c') => return None,
                _ => {}
            },
            file => return Some(file),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_labelled_by_script_and_not_by_interpreter() {
        let of = |line: &'static str| script(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(
            of("/usr/bin/python3.11 work/train.py --rounds 3"),
            Some("work/train.py")
        );
        assert_eq!(of("python -X dev -u -Wd train.py"), Some("train.py"));
        assert_eq!(of("python3 -Im pipeline.run x"), Some("pipeline.run"));
        for none in ["python3", "python3 -", "python3 -c print(1) x", "/opt/train.py x", ""] {
            assert_eq!(of(none), None, "{none}");
        }
        assert_eq!(label("work/train.py", 4242), "train.py (pid 4242)");
        let long = label(&"ä".repeat(100), u32::MAX);
        assert!(
            long.len() <= LABEL_BYTES_MAX && long.ends_with("ä (pid 4294967295)"),
            "{long}"
        );
        let own = of_this_process();
        assert!(own.ends_with(&format!(" (pid {})", std::process::id())), "{own}");
    }
}
