//! Wishes of operators for nodes, in a table.

use super::changes::StoreRules;
use super::queries::{cores_text, count, damaged, find_row, read_rows};
use super::values::{int, int_or_null, upsert};
use super::{Sql, Value};
use crate::StoreError;
use hotlease_lease::agent::{OfferedCores, OfferedGpus};
use hotlease_lease::manager::{NodeWish, OfferWish, WishedState};
use hotlease_wire::ids::AgentId;
use std::collections::BTreeSet;

/// Text of a wish without an offer.
const NONE: &str = "none";
const UNCHANGED: &str = "unchanged";
const ALL: &str = "all";
/// Prefix of a list of cores or GPUs, which may be empty.
const THESE: &str = "these:";
/// Prefix of a number of cores or GPUs.
const COUNT: &str = "count:";
/// Text for a number, or for GPUs, that a wish does not contain.
const ABSENT: &str = "-";

pub(crate) fn put(sql: &mut dyn Sql, rules: &StoreRules, agent: AgentId, wish: &NodeWish) -> Result<(), StoreError> {
    if !find_row(sql, "SELECT agent FROM wishes WHERE agent = $1", agent)?
        && count(sql, "SELECT COUNT(*) FROM wishes")? >= rules.limits.agents
    {
        return Err(StoreError::Full {
            what: "nodes with orders",
            limit: rules.limits.agents,
        });
    }
    let offer = wish.state.offer.as_ref();
    let (id, cores) = (agent.to_string(), cores_choice_text(offer));
    let (gpus, numbers) = match offer.and_then(|offer| offer.gpus.as_ref()) {
        Some(OfferedGpus::Count(count)) => (Some(u64::from(*count)), ABSENT.into()),
        Some(OfferedGpus::These(numbers)) => (None, list_text(numbers)),
        None => (None, ABSENT.into()),
    };
    let earlier: Vec<String> = wish.earlier.iter().map(state_text).collect();
    let earlier = earlier.join("\n");
    let columns = [
        ("agent", Value::Text(&id)),
        ("number", int(wish.number)),
        ("drained_by_ms", int_or_null(wish.state.drained_by_ms)),
        ("cores", Value::Text(&cores)),
        ("memory_bytes", int_or_null(offer.and_then(|offer| offer.memory_bytes))),
        ("offer_by_ms", int_or_null(offer.map(|offer| offer.by_ms))),
        ("gpus", int_or_null(gpus)),
        ("gpu_numbers", Value::Text(&numbers)),
        ("earlier", Value::Text(&earlier)),
    ];
    upsert(sql, "wishes", 1, &columns)
}

pub(crate) fn remove(sql: &mut dyn Sql, agent: AgentId) -> Result<(), StoreError> {
    let statement = "DELETE FROM wishes WHERE agent = $1";
    sql.run(statement, &[Value::Text(&agent.to_string())])
}

pub(crate) fn all(sql: &mut dyn Sql) -> Result<Vec<(AgentId, NodeWish)>, StoreError> {
    let statement = "SELECT agent, number, drained_by_ms, cores, memory_bytes, offer_by_ms, gpus, gpu_numbers, earlier \
                     FROM wishes ORDER BY agent";
    read_rows(sql, statement, &[], |row| {
        let (agent, number, drained_by_ms) = (row.id()?, row.number()?, row.number_or_null()?);
        let cores = parse_cores_choice(&row.text()?)?;
        let (memory_bytes, by_ms) = (row.number_or_null()?, row.number_or_null()?);
        let (count, numbers) = (row.number_or_null()?, row.text()?);
        let gpus = match numbers.as_str() {
            ABSENT => count.map(OfferedGpus::Count),
            numbers => Some(OfferedGpus::These(parse_list(numbers)?)),
        };
        let offer = cores.map(|cores| OfferWish {
            cores,
            memory_bytes,
            gpus,
            by_ms: by_ms.unwrap_or(0),
        });
        let earlier = row.text()?;
        let wish = NodeWish {
            number,
            state: WishedState { drained_by_ms, offer },
            earlier: earlier.lines().map(parse_state).collect::<Result<_, _>>()?,
        };
        Ok((agent, wish))
    })
}

/// Text of a state, one line: deadline of a drain, cores, memory, GPUs, deadline of the offer.
fn state_text(state: &WishedState) -> String {
    let number = |number: Option<u64>| number.map_or(ABSENT.into(), |number| number.to_string());
    let offer = state.offer.as_ref();
    let gpus = match offer.and_then(|offer| offer.gpus.as_ref()) {
        None => ABSENT.into(),
        Some(OfferedGpus::Count(count)) => format!("{COUNT}{count}"),
        Some(OfferedGpus::These(numbers)) => format!("{THESE}{}", list_text(numbers)),
    };
    format!(
        "{} {} {} {gpus} {}",
        number(state.drained_by_ms),
        cores_choice_text(offer),
        number(offer.and_then(|offer| offer.memory_bytes)),
        number(offer.map(|offer| offer.by_ms)),
    )
}

fn parse_state(line: &str) -> Result<WishedState, StoreError> {
    let bad = || damaged("earlier state of a node");
    let fields: Vec<&str> = line.split(' ').collect();
    let [drained_by, cores, memory, gpus, by] = fields[..] else {
        return Err(bad());
    };
    let number = |text: &str| match text {
        ABSENT => Ok(None),
        text => text.parse::<u64>().map(Some).map_err(|_| bad()),
    };
    let gpus = match gpus {
        ABSENT => None,
        text => Some(match (text.strip_prefix(COUNT), text.strip_prefix(THESE)) {
            (Some(count), _) => OfferedGpus::Count(count.parse().map_err(|_| bad())?),
            (_, Some(list)) => OfferedGpus::These(parse_list(list)?),
            _ => return Err(bad()),
        }),
    };
    let (memory_bytes, by_ms) = (number(memory)?, number(by)?.unwrap_or(0));
    let offer = parse_cores_choice(cores)?.map(|cores| OfferWish {
        cores,
        memory_bytes,
        gpus,
        by_ms,
    });
    Ok(WishedState {
        drained_by_ms: number(drained_by)?,
        offer,
    })
}

fn cores_choice_text(offer: Option<&OfferWish>) -> String {
    match offer.map(|offer| &offer.cores) {
        None => NONE.into(),
        Some(OfferedCores::Unchanged) => UNCHANGED.into(),
        Some(OfferedCores::All) => ALL.into(),
        Some(OfferedCores::Count(count)) => format!("{COUNT}{count}"),
        Some(OfferedCores::These(cores)) => format!("{THESE}{}", list_text(cores)),
    }
}

fn parse_cores_choice(text: &str) -> Result<Option<OfferedCores>, StoreError> {
    let bad = || damaged("list of cores");
    if let Some(count) = text.strip_prefix(COUNT) {
        return Ok(Some(OfferedCores::Count(count.parse().map_err(|_| bad())?)));
    }
    if let Some(list) = text.strip_prefix(THESE) {
        return Ok(Some(OfferedCores::These(parse_list(list)?)));
    }
    match text {
        NONE => Ok(None),
        UNCHANGED => Ok(Some(OfferedCores::Unchanged)),
        ALL => Ok(Some(OfferedCores::All)),
        _ => Err(bad()),
    }
}

fn list_text(numbers: &BTreeSet<u32>) -> String {
    cores_text(&numbers.iter().copied().collect::<Vec<u32>>())
}

fn parse_list(list: &str) -> Result<BTreeSet<u32>, StoreError> {
    let parts = list.split(',').filter(|part| !part.is_empty());
    let numbers: Result<_, _> = parts.map(str::parse).collect();
    numbers.map_err(|_| damaged("list of numbers"))
}
