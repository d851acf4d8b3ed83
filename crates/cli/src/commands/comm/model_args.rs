//! Arguments shared by `plan`, `explain` and `simulate`.

use anyhow::Context;
use clap::Args;
use hotlease_collectives::model::{FigureOrigin, LinkPrices, MessageTimes, RANKS_MAX, Scenario, collective_of_bytes};
use hotlease_collectives::{CollectiveCall, Operation, Operator, Recipe, Table};
use hotlease_terminal::exit::CommandError;
use hotlease_terminal::quantity;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Longest file of the model that is read, bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// An operator that does not commute, for planning alone.
static ORDERED: LazyLock<Operator> = LazyLock::new(|| Operator::User {
    function: Arc::new(|_, _, _| ()),
    commutes: false,
});

/// Files of the model.
#[derive(Debug, Args)]
pub(super) struct ModelFileArgs {
    /// Times and prices of links, a TOML file such as crates/collectives/src/model/prices.toml, which is built in
    #[arg(long, value_name = "FILE", env = "HOTLEASE_COMM_PRICES", hide_env_values = true)]
    prices: Option<PathBuf>,
    /// Rules for choosing algorithms, a TOML file like crates/collectives/src/choice/built_in.toml, which is built in
    #[arg(long, value_name = "FILE", env = "HOTLEASE_COMM_TABLE", hide_env_values = true)]
    table: Option<PathBuf>,
}

impl ModelFileArgs {
    pub(super) fn prices(&self) -> anyhow::Result<LinkPrices> {
        match &self.prices {
            Some(file) => read(file, LinkPrices::parse),
            None => Ok(LinkPrices::built_in().clone()),
        }
    }

    pub(super) fn table(&self) -> anyhow::Result<Table> {
        match &self.table {
            Some(file) => read(file, Table::parse),
            None => Ok(Table::built_in().clone()),
        }
    }
}

fn read<T>(path: &Path, parse: impl Fn(&str) -> Result<T, hotlease_collectives::Error>) -> anyhow::Result<T> {
    let unreadable = || format!("cannot read {}", path.display());
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
        .with_context(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        anyhow::bail!("{} is too long: the most is {FILE_BYTES_MAX} bytes", path.display());
    }
    let text = String::from_utf8(bytes).with_context(unreadable)?;
    parse(&text).with_context(|| path.display().to_string())
}

/// Measured latency and bandwidth, if given.
#[derive(Debug, Args)]
pub(super) struct TimesArgs {
    /// Time of a message from one rank to another (alpha), such as 16us [default: as in the prices]
    #[arg(long, value_parser = quantity::parse_time, requires = "bandwidth")]
    latency: Option<Duration>,
    /// Bytes per second from one rank to another (1 / beta), such as 1G
    #[arg(long, value_name = "SIZE", value_parser = quantity::parse_bytes, requires = "latency")]
    bandwidth: Option<usize>,
}

impl TimesArgs {
    pub(super) fn apply(&self, prices: LinkPrices) -> anyhow::Result<LinkPrices> {
        let (Some(latency), Some(bandwidth)) = (self.latency, self.bandwidth) else {
            return Ok(prices);
        };
        let origin = FigureOrigin {
            source: "the command line".into(),
            ..prices.rank.origin.clone()
        };
        Ok(prices.with_message_times(&MessageTimes {
            latency_us: latency.as_secs_f64() * 1e6,
            gap_us: None,
            bandwidth_mb_s: bandwidth as f64 / 1e6,
            origin,
        })?)
    }
}

/// Arguments of one collective.
#[derive(Debug, Args)]
pub(super) struct CollectiveArgs {
    /// Number of members
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(RANKS_MAX)))]
    ranks: u32,
    /// Operation: barrier, broadcast, gather, scatter, allgather, reduce, allreduce, reduce_scatter, scan, exscan,
    /// alltoall...
    #[arg(long = "op", value_name = "OPERATION")]
    operation: Operation,
    /// Bytes of a broadcast, a reduction or a scan, or of all blocks together that one rank sends or receives
    #[arg(long, value_parser = quantity::parse_bytes)]
    size: Option<usize>,
    /// Root of the operation, if it has one
    #[arg(long, default_value_t = 0)]
    root: u32,
    /// The operator does not commute
    #[arg(long)]
    ordered: bool,
}

impl CollectiveArgs {
    pub(super) fn case(&self) -> anyhow::Result<SizedCollective> {
        let size = match (self.size, self.operation) {
            (Some(size), _) => size,
            (None, Operation::Barrier) => 0,
            (None, operation) => {
                let what = format!("{operation} needs a `--size`, such as 64KiB");
                return Err(CommandError::Usage(what).into());
            }
        };
        Ok(SizedCollective {
            operation: self.operation,
            ranks: self.ranks,
            size,
            root: self.root,
            commutes: !self.ordered,
        })
    }
}

/// A collective with its size in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct SizedCollective {
    pub(super) operation: Operation,
    pub(super) ranks: u32,
    pub(super) size: usize,
    pub(super) root: u32,
    pub(super) commutes: bool,
}

impl SizedCollective {
    /// The collective as rank 0 calls it.
    pub(super) fn scenario<'a>(&self, nodes: Option<&'a [u32]>) -> Scenario<'a> {
        let (mut collective, datatype) = collective_of_bytes(self.operation, self.root, self.ranks, self.size);
        if !self.commutes {
            collective = collective.with_operator(&ORDERED);
        }
        Scenario {
            call: CollectiveCall {
                nodes,
                ..CollectiveCall::new(collective, datatype, 0, self.ranks)
            },
            memory_bytes: 0,
            operations_per_hour: None,
        }
    }

    pub(super) fn words(&self) -> String {
        let size = quantity::bytes(self.size as u64);
        match self.operation {
            Operation::Barrier => format!("barrier of {} ranks", self.ranks),
            operation => format!("{operation} of {size} by {} ranks", self.ranks),
        }
    }
}

/// Name of an algorithm with its segment size and its use of nodes.
pub(super) fn algorithm(recipe: &Recipe, element: usize) -> String {
    let mut text = recipe.algorithm.to_string();
    if recipe.segment > 0 {
        let segment = quantity::bytes((recipe.segment * element) as u64);
        text.push_str(&format!(", {segment} at a time"));
    }
    if recipe.by_nodes {
        text.push_str(" between nodes");
    }
    text
}

/// A time with its unit, given in seconds.
pub(super) fn time(seconds: f64) -> String {
    quantity::nanoseconds((seconds * 1e9).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_over_the_limit_is_refused_with_the_limit() {
        let path = std::env::temp_dir().join(format!("hotlease-model-file-{}", std::process::id()));
        // The file is one long comment, so the part before the limit could be read without an error.
        let file = |bytes: u64| format!("#{}", "x".repeat(bytes as usize - 1));
        std::fs::write(&path, file(FILE_BYTES_MAX)).expect("written");
        let read_whole = read(&path, |text| Ok(text.len() as u64));
        std::fs::write(&path, file(FILE_BYTES_MAX + 1)).expect("written");
        let refused = read(&path, |text| Ok(text.len()));
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(read_whole.expect("it is not too long"), FILE_BYTES_MAX);
        let error = refused.expect_err("it is too long").to_string();
        assert!(error.contains("the most is 4194304 bytes"), "{error}");
    }
}
