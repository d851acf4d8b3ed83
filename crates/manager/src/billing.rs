//! Bills, and the comparison of the ledger with agents' journals.

mod tariff;

pub use tariff::load_tariff;

use crate::records::{bad_request, functions, parse_ids, totals, usage};
use crate::state::ManagerState;
use hotlease_lease::ledger::{FunctionTotals, FunctionUse, Money, Tariff, TotalsText, cost, covers};
use hotlease_store::{BillGrouping, BillLine, BillQuery, RowKey, RowState};
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{
    BillBy, BillReply, BillRequest, BillRow, Disputed, JournalTotal, VerifyReply, VerifyRequest,
};
use hotlease_wire::limits::{LABEL_BYTES_MAX, TENANT_BYTES_MAX};
use hotlease_wire::session::UsageTotals;

/// Limit of journal totals in one request.
const TOTALS_MAX: usize = 4096;

fn filter(what: &str, text: String, limit: usize) -> Result<Option<String>, Rejection> {
    if text.len() > limit {
        return Err(bad_request(format!("the {what} has more than {limit} bytes")));
    }
    Ok(Some(text).filter(|text| !text.is_empty()))
}

fn query(request: BillRequest) -> Result<BillQuery, Rejection> {
    let by = BillBy::try_from(request.by).map_err(|_| bad_request("unknown grouping of a bill"))?;
    let moment = |ms: u64| Some(ms).filter(|ms| *ms > 0);
    Ok(BillQuery {
        tenant: filter("tenant", request.tenant, TENANT_BYTES_MAX)?,
        job: filter("job", request.job, LABEL_BYTES_MAX)?,
        since_ms: moment(request.since_ms),
        until_ms: moment(request.until_ms),
        by: match by {
            BillBy::Tenant => BillGrouping::Tenant,
            BillBy::Job => BillGrouping::Job,
            BillBy::Lease => BillGrouping::Lease,
            BillBy::Function => BillGrouping::Function,
        },
    })
}

/// Bill of usage, with its cost at the current prices.
pub(crate) async fn bill(state: &ManagerState, request: BillRequest) -> Result<BillReply, Rejection> {
    let query = query(request)?;
    let bill = state.store(move |store| store.bill(&query)).await?;
    let tariff = &state.config.tariff;
    let mut total = 0;
    let rows = bill.lines.into_iter().map(|line| {
        let (row, cost) = priced(tariff, line);
        total += cost;
        row
    });
    Ok(BillReply {
        rows: rows.collect(),
        currency: tariff.currency.clone(),
        total: Money(total).to_string(),
        disputed: bill.disputed,
        as_of_ms: state.unix_ms(),
    })
}

fn priced(tariff: &Tariff, line: BillLine) -> (BillRow, u128) {
    let cost = cost(tariff.of(&line.tenant), line.usage, line.memory_mib_ms);
    let (function, library) = match &line.function {
        Some(id) => (id.name.to_string(), id.library.to_string()),
        None => Default::default(),
    };
    let name = |name: fn(RowKey) -> String| line.lease.map(name).unwrap_or_default();
    let row = BillRow {
        lease: name(|key| key.lease.to_string()),
        agent: name(|key| key.agent.to_string()),
        boot: name(|key| key.boot.to_string()),
        tenant: line.tenant,
        job: line.job,
        label: line.label,
        leases: line.leases,
        usage: Some(usage(line.usage)),
        memory_mib_ms: line.memory_mib_ms,
        allocated_cost: Money(cost.allocated).to_string(),
        computing_cost: Money(cost.computing).to_string(),
        hot_cost: Money(cost.hot).to_string(),
        memory_cost: Money(cost.memory).to_string(),
        cost: Money(cost.total()).to_string(),
        function,
        library,
    };
    (row, cost.total())
}

/// Audits the ledger if asked to, and compares it with totals from an agent's journal.
pub(crate) async fn verify(state: &ManagerState, request: VerifyRequest) -> Result<VerifyReply, Rejection> {
    if request.journal.len() > TOTALS_MAX {
        return Err(bad_request(format!("more than {TOTALS_MAX} totals in one question")));
    }
    let told = request.journal.into_iter().map(|total| {
        let (agent, boot) = parse_ids(&total.agent, &total.boot)?;
        let lease = total.lease.parse();
        let lease = lease.map_err(|_| bad_request("lease id is not 16 hexadecimal digits"))?;
        let functions = functions(total.functions.clone())?;
        Ok((RowKey { agent, boot, lease }, total, functions))
    });
    let told: Vec<(RowKey, JournalTotal, FunctionTotals)> = told.collect::<Result<_, Rejection>>()?;
    let keys: Vec<RowKey> = told.iter().map(|(key, ..)| *key).collect();
    let now_ms = state.unix_ms();
    let audit = request.audit;
    let (audit, functions, rows) = state
        .store(move |store| {
            let audit = audit.then(|| store.audit(now_ms)).transpose()?;
            // Reads the usage of functions before the rows, because usage may grow between the two reads. In this
            // order, the functions of a lease never exceed its row.
            let functions = store.functions(&keys)?;
            Ok((audit.unwrap_or_default(), functions, store.rows(&keys)?))
        })
        .await?;
    let mut reply = VerifyReply {
        rows: audit.rows,
        problems: audit.problems,
        disputed: audit.disputed.iter().map(disputed).collect(),
        ..VerifyReply::default()
    };
    for (((key, total, by_function), row), billed) in told.iter().zip(&rows).zip(&functions) {
        let measured = totals(total.usage);
        match reconcile(key, measured, total, row.as_ref(), now_ms) {
            Finding::Agrees => {
                reply.agreeing += 1;
                reply
                    .problems
                    .extend(misattributed(key, total, by_function, row.as_ref(), billed));
            }
            Finding::Waits => reply.waiting += 1,
            Finding::Capped => reply.capped += 1,
            Finding::Wrong(problem) => reply.problems.push(problem),
        }
    }
    Ok(reply)
}

/// Compares the functions of a lease in a journal with those in the ledger. The totals of the lease agree already.
fn misattributed(
    key: &RowKey,
    total: &JournalTotal,
    measured: &FunctionTotals,
    row: Option<&RowState>,
    billed: &FunctionTotals,
) -> Option<String> {
    let all: FunctionUse = row?.usage.into();
    let sum = billed.sum();
    for (id, used) in measured.iter() {
        let found = billed.get(id);
        // A function's row stops growing once other functions have used up the lease's total.
        let is_full = sum.compute_ns == all.compute_ns || sum.invocations == all.invocations;
        let too_little = total.acknowledged && !found.covers(used) && !is_full;
        let too_much = total.ended && !used.covers(found);
        if too_little || too_much {
            return Some(format!(
                "function {} of lease {} of agent {} (boot {}) is billed for {} ns and {} invocations, and its agent \
                 measured {} ns and {}",
                id.name,
                key.lease,
                key.agent,
                key.boot,
                found.compute_ns,
                found.invocations,
                used.compute_ns,
                used.invocations
            ));
        }
    }
    None
}

fn disputed(row: &RowState) -> Disputed {
    Disputed {
        agent: row.key.agent.to_string(),
        boot: row.key.boot.to_string(),
        lease: row.key.lease.to_string(),
        tenant: row.tenant.clone(),
        usage: Some(usage(row.usage)),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Finding {
    /// Journal and ledger do not contradict each other.
    Agrees,
    /// The agent has more to report.
    Waits,
    /// The agent measured more than its lease allows, or there was no grant; the excess is not billed.
    Capped,
    /// Journal and ledger disagree; the text describes how.
    Wrong(String),
}

/// Compares a lease's total in a journal with the ledger's row.
fn reconcile(
    key: &RowKey,
    measured: UsageTotals,
    total: &JournalTotal,
    row: Option<&RowState>,
    now_ms: u64,
) -> Finding {
    let name = format!("lease {} of agent {} (boot {})", key.lease, key.agent, key.boot);
    let Some(row) = row else {
        return match total.acknowledged {
            false => Finding::Waits,
            true => Finding::Wrong(format!(
                "{name} was acknowledged with {} and is not in the ledger",
                TotalsText(measured)
            )),
        };
    };
    if total.ended && !covers(measured, row.usage) {
        return Finding::Wrong(format!(
            "{name} is billed for {}, and its agent measured {}",
            TotalsText(row.usage),
            TotalsText(measured)
        ));
    }
    if covers(row.usage, measured) {
        return Finding::Agrees;
    }
    let (allowed, capped) = row.account.merge(row.usage, measured, now_ms);
    if row.disputed || (capped && allowed == row.usage) {
        return Finding::Capped;
    }
    match total.acknowledged {
        false => Finding::Waits,
        true => Finding::Wrong(format!(
            "{name} was acknowledged with {}, and the ledger has {}",
            TotalsText(measured),
            TotalsText(row.usage)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_lease::ledger::Account;
    use hotlease_wire::ids::{AgentId, BootId, LeaseId};

    fn used(allocated_ns: u64) -> UsageTotals {
        UsageTotals {
            allocated_ns,
            ..UsageTotals::default()
        }
    }

    fn key() -> RowKey {
        RowKey {
            agent: AgentId([1; 8]),
            boot: BootId([1; 8]),
            lease: LeaseId([1; 8]),
        }
    }

    fn row(allocated_ns: u64) -> RowState {
        RowState {
            key: key(),
            tenant: "uid:1".into(),
            label: String::new(),
            job: String::new(),
            account: Account {
                slots: 1,
                ended_ms: Some(1_000),
                ..Account::default()
            },
            usage: used(allocated_ns),
            settled: true,
            disputed: false,
        }
    }

    fn find(row: Option<RowState>, measured: u64, acknowledged: bool, ended: bool) -> Finding {
        let total = JournalTotal {
            acknowledged,
            ended,
            ..JournalTotal::default()
        };
        reconcile(&key(), used(measured), &total, row.as_ref(), 5_000)
    }

    #[test]
    fn lost_and_invented_usage_are_found_and_told_from_what_is_under_way() {
        assert_eq!(find(Some(row(5)), 5, true, true), Finding::Agrees);
        assert_eq!(find(None, 5, false, true), Finding::Waits);
        assert_eq!(find(Some(row(4)), 5, false, true), Finding::Waits);
        // A heartbeat may be newer than the journal's total of a running lease.
        assert_eq!(find(Some(row(6)), 5, false, false), Finding::Agrees);
        for lost in [find(None, 5, true, true), find(Some(row(4)), 5, true, true)] {
            assert!(matches!(lost, Finding::Wrong(_)), "{lost:?}");
        }
        let invented = find(Some(row(6)), 5, true, true);
        assert!(matches!(invented, Finding::Wrong(_)), "{invented:?}");
    }

    #[test]
    fn usage_above_an_account_limit_is_no_loss() {
        let most = row(0).account.limit_ns(5_000);
        assert_eq!(find(Some(row(most)), most + 1, true, true), Finding::Capped);
        let unbilled = RowState {
            disputed: true,
            ..row(4)
        };
        assert_eq!(find(Some(unbilled), 5, true, true), Finding::Capped);
    }
}
