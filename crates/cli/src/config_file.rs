//! `--config FILE`: options of a daemon in a file.
//!
//! Each key is the name of an option of the command, as `--help` lists it: `listen = "0.0.0.0:7070"` is `--listen
//! 0.0.0.0:7070`, `in-memory = true` is `--in-memory`, and a list gives an option several times. Options on the command
//! line override options in the file; options that may be given more than once add up. There is no second set of names,
//! defaults or checks.

use anyhow::{Context, bail, ensure};
use clap::{Arg, ArgAction, Args, Command};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Option that names the file.
const OPTION: &str = "--config";
/// Longest file, bytes.
const BYTES_MAX: u64 = 1 << 20;

/// The option `--config`, for the commands that have it; [`expand`] reads it before the command line is parsed.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// Options from a TOML file, by their names in this list; the command line overrides them
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The command line `args`, with the options of the file that it names, if any. `command` is the command of the whole
/// program.
pub(crate) fn expand(command: &Command, args: Vec<OsString>) -> anyhow::Result<Vec<OsString>> {
    // The first word that is no option names the subcommand, whose options the file may have.
    let names = args.iter().enumerate().skip(1);
    let Some((at, name)) = names.clone().find(|(_, arg)| !arg.as_encoded_bytes().starts_with(b"-")) else {
        return Ok(args);
    };
    let subcommand = name.to_str().and_then(|name| command.find_subcommand(name));
    let Some(subcommand) = subcommand.filter(|command| has_option(command)) else {
        return Ok(args);
    };
    let Some(file) = named_file(&args[at + 1..]) else {
        return Ok(args);
    };
    let file = Path::new(&file);
    let table = read(file).with_context(|| format!("cannot use the configuration {}", file.display()))?;
    let options = options(subcommand, table, &args[at + 1..])
        .with_context(|| format!("in the configuration {}", file.display()))?;
    let mut expanded = args;
    expanded.splice(at + 1..at + 1, options);
    Ok(expanded)
}

fn has_option(command: &Command) -> bool {
    command.get_arguments().any(|arg| arg.get_long() == Some("config"))
}

fn named_file(args: &[OsString]) -> Option<OsString> {
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == OPTION {
            return args.next().cloned();
        }
        if let Some(file) = arg.to_str().and_then(|arg| arg.strip_prefix("--config=")) {
            return Some(file.into());
        }
    }
    None
}

fn read(file: &Path) -> anyhow::Result<Table> {
    let mut text = String::new();
    fs::File::open(file)?.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    ensure!(text.len() as u64 <= BYTES_MAX, "it is longer than {BYTES_MAX} bytes");
    Ok(text.parse::<Table>()?)
}

/// Options of the file as arguments, without the options that `given` overrides.
fn options(command: &Command, table: Table, given: &[OsString]) -> anyhow::Result<Vec<OsString>> {
    let mut options = Vec::new();
    for (key, value) in table {
        let known =
            |arg: &&Arg| arg.get_long() == Some(key.as_str()) && !["config", "help", "openapi"].contains(&key.as_str());
        let Some(arg) = command.get_arguments().find(known) else {
            bail!(
                "`{key}` is no option of `hotlease {0}`; `hotlease {0} --help` lists them",
                command.get_name()
            );
        };
        let repeated = matches!(arg.get_action(), ArgAction::Append);
        if !repeated && is_given(given, &key) {
            continue;
        }
        let takes_value = arg.get_action().takes_values();
        match value {
            Value::Boolean(wanted) if !takes_value => {
                if wanted {
                    options.push(format!("--{key}").into());
                }
            }
            Value::Array(values) if repeated => {
                for value in values {
                    options.push(format!("--{key}={}", text(&key, &value)?).into());
                }
            }
            value if takes_value => options.push(format!("--{key}={}", text(&key, &value)?).into()),
            _ => bail!("`{key}` is either true or false"),
        }
    }
    Ok(options)
}

fn is_given(given: &[OsString], key: &str) -> bool {
    let long = format!("--{key}");
    let with_value = format!("{long}=");
    given
        .iter()
        .map(OsString::as_os_str)
        .any(|arg: &OsStr| arg == long.as_str() || arg.as_encoded_bytes().starts_with(with_value.as_bytes()))
}

fn text(key: &str, value: &Value) -> anyhow::Result<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        other => bail!("`{key}` is {}; it must be a text or a number", other.type_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::io::Write;

    fn expanded(file: &str, args: &[&str]) -> anyhow::Result<Vec<String>> {
        let mut config = tempfile::NamedTempFile::new()?;
        config.write_all(file.as_bytes())?;
        let path = config.path().to_str().context("a path")?;
        let args = args.iter().map(|arg| OsString::from(arg.replace("FILE", path)));
        let expanded = expand(&crate::Cli::command(), args.collect())?;
        let shown = expanded
            .into_iter()
            .map(|arg| arg.to_string_lossy().replace(path, "FILE"));
        Ok(shown.collect())
    }

    #[test]
    fn a_file_says_what_a_command_line_says_and_the_command_line_counts_more() {
        let file = "cores = \"0-3\"\npool = 2\nin-memory = true\ntenant = [\"a\", \"b\"]\n";
        let args = [
            "hotlease", "--json", "agent", "--config", "FILE", "--pool=7", "--tenant", "c",
        ];
        let words = expanded(file, &args).unwrap();
        assert_eq!(
            words,
            [
                "hotlease",
                "--json",
                "agent",
                "--cores=0-3",
                "--in-memory",
                "--tenant=a",
                "--tenant=b",
                "--config",
                "FILE",
                "--pool=7",
                "--tenant",
                "c"
            ]
        );
        let same = ["hotlease", "run", "--config", "FILE"];
        assert_eq!(expanded(file, &same).unwrap(), same, "no file configures `run`");
    }

    #[test]
    fn unknown_options_are_named() {
        let args = ["hotlease", "manager", "--config=FILE"];
        for (file, says) in [
            ("lisen = \"x\"", "`lisen` is no option of `hotlease manager`"),
            ("config = \"other\"", "`config` is no option"),
            ("in-memory = 1", "`in-memory` is either true or false"),
            ("listen = true", "`listen` is boolean"),
            ("listen = ", "cannot use the configuration"),
        ] {
            let error = expanded(file, &args).map_err(|error| format!("{error:#}"));
            assert!(
                error.as_ref().is_err_and(|error| error.contains(says)),
                "{file}: {error:?}"
            );
        }
    }

    /// The example that comes with the program names each option once, and nothing else.
    #[test]
    fn the_examples_name_every_option() {
        let program = crate::Cli::command();
        for (name, example) in [
            ("manager", include_str!("../../../deploy/systemd/manager.toml")),
            ("agent", include_str!("../../../deploy/systemd/agent.toml")),
        ] {
            let command = program.find_subcommand(name).unwrap();
            let mut options: Vec<_> = command
                .get_arguments()
                .filter_map(Arg::get_long)
                .filter(|long| !["config", "help", "json", "openapi"].contains(long))
                .collect();
            options.sort_unstable();
            // A key stands at the beginning of a line, perhaps after `#`.
            let uncommented: Vec<String> = example
                .lines()
                .map(|line| line.strip_prefix('#').unwrap_or(line))
                .filter(|line| line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' ')))
                .map(str::to_owned)
                .collect();
            let mut keys: Vec<_> = uncommented.iter().filter_map(|line| line.split(' ').next()).collect();
            keys.sort_unstable();
            assert_eq!(keys, options, "deploy/systemd/{name}.toml");
            let table: Table = uncommented.join("\n").parse().unwrap();
            super::options(command, table, &[]).unwrap();
        }
    }
}
