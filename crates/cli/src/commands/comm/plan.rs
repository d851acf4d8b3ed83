//! `hotlease comm plan`: time and cost of a collective on each link.

use super::model_args::{CollectiveArgs, ModelFileArgs, algorithm, time};
use clap::Args;
use hotlease_collectives::LinkKind;
use hotlease_collectives::model::{Criterion, Estimate, Scenario, estimate};
use hotlease_comm::{Error, LinkChoice};
use hotlease_terminal::exit::CommandError;
use hotlease_terminal::output::Printer;
use hotlease_terminal::quantity;
use serde::Serialize;

/// Show the modelled time and cost of a collective on each link, and which link is the best
///
/// Nothing is measured. Times follow from the links' latencies and bandwidths and from the algorithms that would be
/// used; prices follow from these times, the functions' memory, the servers' hours and the requests.
/// crates/collectives/src/model/prices.toml names the sources of the figures; `--prices` reads other figures. Members
/// with the link `auto:LINKS,op=...,size=...,by=...` make the same choice as this command with the same words. With
/// `--json`, prints one object per link: link, algorithm, seconds, price, functions, servers, requests, currency (of
/// one operation), messages, bytes, writes, reads, polls, chosen.
#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    #[command(flatten)]
    collective: CollectiveArgs,
    /// Memory of each function
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = quantity::parse_bytes)]
    memory: usize,
    /// Choose by time, by price, or by their product
    #[arg(long, default_value = "price")]
    by: Criterion,
    /// Usable links, by the names of this command or in the form for members: direct, redis://host, s3://bucket...
    #[arg(long, value_delimiter = ',', default_value = "tcp,redis,s3,dynamodb", value_parser = link)]
    links: Vec<LinkKind>,
    /// Number of such operations that share the servers in an hour [default: servers are paid for the duration of
    /// the operation]
    #[arg(long, value_name = "COUNT")]
    operations_per_hour: Option<u32>,
    #[command(flatten)]
    files: ModelFileArgs,
}

/// A link by its name in tables, or in the form for members.
fn link(text: &str) -> Result<LinkKind, Error> {
    text.parse::<LinkKind>()
        .map_err(Error::from)
        .or_else(|unknown| match text.parse::<LinkChoice>() {
            Ok(link) => link.kind().ok_or(unknown),
            Err(wrong) => Err(if text.contains("://") { wrong } else { unknown }),
        })
}

#[derive(Serialize)]
struct LinkRow {
    link: String,
    algorithm: String,
    seconds: f64,
    price: f64,
    functions: f64,
    servers: f64,
    requests: f64,
    currency: String,
    messages: u64,
    bytes: u64,
    writes: u64,
    reads: u64,
    polls: u64,
    chosen: bool,
}

pub(super) fn carry_out(args: &PlanArgs, output: &mut Printer) -> anyhow::Result<()> {
    let (prices, table) = (args.files.prices()?, args.files.table()?);
    let case = args.collective.case()?;
    let scenario = Scenario {
        memory_bytes: args.memory as u64,
        operations_per_hour: args.operations_per_hour.map(f64::from),
        ..case.scenario(None)
    };
    let estimates: Vec<Estimate> = args
        .links
        .iter()
        .map(|link| estimate(&scenario, *link, &table, &prices))
        .collect::<Result<_, _>>()?;
    let Some(best) = args.by.best(&estimates) else {
        return Err(CommandError::Usage("there is no link to choose".into()).into());
    };
    let row = |estimate: &Estimate| {
        let (outcome, price) = (estimate.outcome, estimate.price);
        LinkRow {
            link: estimate.link.to_string(),
            algorithm: algorithm(&estimate.recipe, scenario.element()),
            seconds: estimate.seconds(),
            price: price.total(),
            functions: price.functions,
            servers: price.servers,
            requests: price.requests,
            currency: prices.currency.clone(),
            messages: outcome.messages,
            bytes: outcome.bytes,
            writes: outcome.writes,
            reads: outcome.reads,
            polls: outcome.polls,
            chosen: estimate.link == best.link,
        }
    };
    let rows: Vec<LinkRow> = estimates.iter().map(row).collect();
    if !output.is_json() {
        let memory = quantity::bytes(args.memory as u64);
        output.line(&format!(
            "{}, functions of {memory}; prices: {} for a million",
            case.words(),
            prices.currency
        ))?;
    }
    let columns =
        "LINK, ALGORITHM, >TIME, >PRICE, >FUNCTIONS, >SERVERS, >REQUESTS, >MESSAGES, >WRITES, >READS, >IN VAIN";
    output.list(&rows, columns, "", |row| {
        vec![
            row.link.clone(),
            row.algorithm.clone(),
            time(row.seconds),
            money(row.price),
            money(row.functions),
            money(row.servers),
            money(row.requests),
            row.messages.to_string(),
            row.writes.to_string(),
            row.reads.to_string(),
            row.polls.to_string(),
        ]
    })?;
    if !output.is_json() {
        output.line(&format!("by {}: {}", args.by, best.link))?;
    }
    Ok(())
}

/// Price of a million operations, with three digits.
fn money(price: f64) -> String {
    let million = price * 1e6;
    let digits = match million {
        nothing if nothing <= 0.0 => return "0".into(),
        small if small < 0.0995 => 4,
        small if small < 0.995 => 3,
        small if small < 9.95 => 2,
        medium if medium < 99.5 => 1,
        _ => 0,
    };
    format!("{million:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::money;

    #[test]
    fn a_price_has_three_digits() {
        let shown = [0.0, 1.234e-8, 2.5e-7, 1.0e-6, 12.34e-6, 123.4e-6, 1.0].map(money);
        assert_eq!(shown, ["0", "0.0123", "0.250", "1.00", "12.3", "123", "1000000"]);
    }
}
