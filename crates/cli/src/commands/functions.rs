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
/// With `--json` and a library, prints an object for each function: index, name, interface (plain, context),
/// idempotent. With `--json` and no library, prints an object for each cached library: hash, size_bytes, functions,
/// agent.
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

/// The first names, and the number of the remaining names.
fn shortened(names: &[String]) -> String {
    const SHOWN: usize = 6;
    let mut text = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(" ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}
