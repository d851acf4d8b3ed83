//! Wishes of operators for nodes, in a table.

use super::changes::StoreRules;
use super::queries::{cores_text, count, damaged, find_row, read_rows};
use super::values::{int, int_or_null, upsert};
use super::{Sql, Value};
use crate::StoreError;
use hotlease_lease::agent::OfferedCores;
use hotlease_lease::manager::{NodeWish, OfferWish};
use hotlease_wire::ids::AgentId;

/// No offer is wished for.
const NONE: &str = "none";
const UNCHANGED: &str = "unchanged";
const ALL: &str = "all";
/// Prefix of a list of cores, which may be empty.
const THESE: &str = "these:";
/// Prefix of a number of cores.
const COUNT: &str = "count:";

pub(crate) fn put(sql: &mut dyn Sql, rules: &StoreRules, agent: AgentId, wish: &NodeWish) -> Result<(), StoreError> {
    if !find_row(sql, "SELECT agent FROM wishes WHERE agent = $1", agent)?
        && count(sql, "SELECT COUNT(*) FROM wishes")? >= rules.limits.agents
    {
        return Err(StoreError::Full {
            what: "nodes with orders",
            limit: rules.limits.agents,
        });
    }
    let offer = wish.offer.as_ref();
    let (id, cores) = (agent.to_string(), cores_choice_text(offer));
    let columns = [
        ("agent", Value::Text(&id)),
        ("number", int(wish.number)),
        ("drained_by_ms", int_or_null(wish.drained_by_ms)),
        ("cores", Value::Text(&cores)),
        ("memory_bytes", int_or_null(offer.and_then(|offer| offer.memory_bytes))),
        ("offer_by_ms", int_or_null(offer.map(|offer| offer.by_ms))),
        ("gpus", int_or_null(offer.and_then(|offer| offer.gpus).map(u64::from))),
    ];
    upsert(sql, "wishes", 1, &columns)
}

pub(crate) fn remove(sql: &mut dyn Sql, agent: AgentId) -> Result<(), StoreError> {
    let statement = "DELETE FROM wishes WHERE agent = $1";
    sql.run(statement, &[Value::Text(&agent.to_string())])
}

pub(crate) fn all(sql: &mut dyn Sql) -> Result<Vec<(AgentId, NodeWish)>, StoreError> {
    let statement =
        "SELECT agent, number, drained_by_ms, cores, memory_bytes, offer_by_ms, gpus FROM wishes ORDER BY agent";
    read_rows(sql, statement, &[], |row| {
        let (agent, number, drained_by_ms) = (row.id()?, row.number()?, row.number_or_null()?);
        let cores = parse_cores_choice(&row.text()?)?;
        let (memory_bytes, by_ms) = (row.number_or_null()?, row.number_or_null()?);
        let gpus = row.number_or_null()?;
        let offer = cores.map(|cores| OfferWish {
            cores,
            memory_bytes,
            gpus,
            by_ms: by_ms.unwrap_or(0),
        });
        let wish = NodeWish {
            number,
            drained_by_ms,
            offer,
        };
        Ok((agent, wish))
    })
}

fn cores_choice_text(offer: Option<&OfferWish>) -> String {
    match offer.map(|offer| &offer.cores) {
        None => NONE.into(),
        Some(OfferedCores::Unchanged) => UNCHANGED.into(),
        Some(OfferedCores::All) => ALL.into(),
        Some(OfferedCores::Count(count)) => format!("{COUNT}{count}"),
        Some(OfferedCores::These(cores)) => {
            let cores: Vec<u32> = cores.iter().copied().collect();
            format!("{THESE}{}", cores_text(&cores))
        }
    }
}

fn parse_cores_choice(text: &str) -> Result<Option<OfferedCores>, StoreError> {
    let bad = || damaged("list of cores");
    if let Some(count) = text.strip_prefix(COUNT) {
        return Ok(Some(OfferedCores::Count(count.parse().map_err(|_| bad())?)));
    }
    if let Some(list) = text.strip_prefix(THESE) {
        let parts = list.split(',').filter(|part| !part.is_empty());
        let cores: Result<_, _> = parts.map(str::parse).collect();
        return Ok(Some(OfferedCores::These(cores.map_err(|_| bad())?)));
    }
    match text {
        NONE => Ok(None),
        UNCHANGED => Ok(Some(OfferedCores::Unchanged)),
        ALL => Ok(Some(OfferedCores::All)),
        _ => Err(bad()),
    }
}
