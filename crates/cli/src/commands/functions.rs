//! `hotlease functions`: functions of a library, or cached libraries.

use clap::Args;
use hotlease_client::Code;
use hotlease_terminal::output::Printer;
use hotlease_terminal::platform::{Platform, SiteArgs};
use hotlease_terminal::quantity;
use hotlease_wire::code::Interface;
use hotlease_wire::grpc::{CodeInfo, ListRequest};
use hotlease_wire::mirror;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// List the functions of a library, or the libraries that the platform has cached
///
/// Leaves out templates of the C++ standard library that were compiled into the library. With `--json` and a library,
/// prints an object for each function: index, name, interface (plain, context), idempotent. With `--json` and no
/// library, prints an object for each cached library: hash, size_bytes, functions, agent.
#[derive(Debug, Args)]
pub(crate) struct FunctionsArgs {
    /// A shared library [default: list the libraries that the platform has cached]
    #[arg(value_name = "LIB.so")]
    library: Option<PathBuf>,
    #[command(flatten)]
    site: SiteArgs,
}

#[derive(Serialize)]
struct FunctionRow {
    index: usize,
    name: String,
    interface: &'static str,
    idempotent: bool,
}

mirror! {
    #[derive(Serialize)]
    struct CodeRow from(info: CodeInfo) {
        hash: String,
        size_bytes: u64,
        functions: Vec<String>,
        agent: String,
    }
}

pub(crate) fn carry_out(args: FunctionsArgs, output: &mut Printer) -> anyhow::Result<()> {
    match args.library {
        Some(library) => of_library(&library, output),
        None => cached(&args.site, output),
    }
}

fn of_library(library: &Path, output: &mut Printer) -> anyhow::Result<()> {
    let code = Code::open(library)?;
    let rows: Vec<FunctionRow> = code
        .functions()
        .iter()
        .enumerate()
        .filter(|(_, function)| !is_of_standard_library(&function.name))
        .map(|(index, function)| FunctionRow {
            index,
            name: function.name.clone(),
            interface: match function.interface {
                Interface::Plain => "plain",
                Interface::Context => "context",
            },
            idempotent: function.idempotent,
        })
        .collect();
    let columns = ">INDEX, FUNCTION, INTERFACE, IDEMPOTENT";
    output.list(&rows, columns, "no functions", |row| {
        let idempotent = if row.idempotent { "yes" } else { "no" };
        vec![
            row.index.to_string(),
            row.name.clone(),
            row.interface.into(),
            idempotent.into(),
        ]
    })
}

fn cached(site: &SiteArgs, output: &mut Printer) -> anyhow::Result<()> {
    let mut platform = Platform::of(site)?;
    let list = platform.request(async |client| client.list_functions(ListRequest::default()).await)?;
    let rows: Vec<CodeRow> = list.codes.into_iter().map(CodeRow::from).collect();
    let columns = "LIBRARY, >SIZE, AGENT, FUNCTIONS";
    let empty = "no libraries are cached; `hotlease run LIB.so FUNCTION` loads one";
    output.list(&rows, columns, empty, |row| {
        vec![
            row.hash.chars().take(16).collect(),
            quantity::bytes(row.size_bytes),
            row.agent.clone(),
            shortened(&row.functions),
        ]
    })
}

/// Whether this is the mangled name of a function of the C++ standard library.
fn is_of_standard_library(name: &str) -> bool {
    const NAMESPACES: [&str; 2] = ["St", "9__gnu_cxx"];
    // The name of a function in a namespace begins with N and qualifiers of `this`.
    let Some(name) = name.strip_prefix("_Z") else {
        return false;
    };
    let name = name
        .strip_prefix('N')
        .unwrap_or(name)
        .trim_start_matches(['r', 'V', 'K', 'R', 'O']);
    NAMESPACES.iter().any(|namespace| name.starts_with(namespace))
}

/// The first names, and the number of the remaining names.
fn shortened(names: &[String]) -> String {
    const SHOWN: usize = 6;
    let mut text = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(" ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_the_standard_library_are_known_by_their_names() {
        let of_library = [
            "_ZNSt6vectorIdSaIdEE17_M_realloc_insertIJdEEEvN9__gnu_cxx17__normal_iteratorIPdS1_EEDpOT_",
            "_ZSt16__do_uninit_copyIPKdPdET0_T_S4_S3_",
            "_ZNKSt5ctypeIcE8do_widenEc",
            "_ZN9__gnu_cxx13new_allocatorIdE8allocateEmPKv",
        ];
        let own = [
            "norm",
            "_Z4normPKdm",
            "_ZN2my4normEv",
            "_ZNK2my6Matrix4normEv",
            "Standard",
        ];
        assert!(of_library.into_iter().all(is_of_standard_library));
        assert!(!own.into_iter().any(is_of_standard_library));
    }
}
