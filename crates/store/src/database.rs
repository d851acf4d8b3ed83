//! Store in a database, with one connection for writing and one for reading.

use crate::sql::changes::{self, ACTIVE, LATEST_MS, StoreRules};
use crate::sql::functions;
use crate::sql::people;
use crate::sql::queries::{self, LeaseSelection};
use crate::sql::{Cell, DatabaseWriter, Sql, WriterHook, orders, schema, wishes};
use crate::{
    AgentRecord, Audit, Bill, BillQuery, DoneCallback, KeyRecord, LeaseRecord, PutCondition, ReportRecord,
    ReportResult, RowKey, RowState, Store, StoreError, TenantRecord, TenantStore,
};
use hotlease_journal::StateDir;
use hotlease_lease::ledger::FunctionTotals;
use hotlease_lease::manager::{NodeWish, OrderRecord};
use hotlease_wire::ids::{AgentId, LeaseId};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counter of probes: writes that only test whether writing succeeds.
const PROBES: &str = "probes";

/// Parts of a store that only a database in a directory has.
pub(crate) struct DatabaseParts {
    /// Query that checks the database for damage: returns the word `ok`, or a row for each problem.
    pub(crate) check: String,
    /// Directory of the database; locked as long as this value exists.
    pub(crate) _dir: StateDir,
}

/// A [`Store`] in a database; made by [`open_sqlite`](crate::open_sqlite) or [`open_postgres`](crate::open_postgres).
pub struct DatabaseStore {
    writer: DatabaseWriter,
    /// Connection that reads committed data only; locked for each query.
    reader: Mutex<Box<dyn Sql + Send>>,
    rules: StoreRules,
    // Declared after the connections, so that the directory is unlocked after they are dropped.
    own: Option<DatabaseParts>,
}

impl DatabaseStore {
    pub(crate) fn start(
        writer: impl Sql + Send + 'static,
        reader: impl Sql + Send + 'static,
        rules: StoreRules,
        hook: Option<WriterHook>,
        own: Option<DatabaseParts>,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            writer: DatabaseWriter::start(writer, hook)?,
            reader: Mutex::new(Box::new(reader)),
            rules,
            own,
        })
    }

    /// Locks the reading connection. Queries change no data, so the connection can be used even if the lock is
    /// poisoned.
    fn reader(&self) -> MutexGuard<'_, Box<dyn Sql + Send>> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for DatabaseStore {
    fn put_agent(&self, agent: AgentRecord, at_ms: u64) -> Result<(), StoreError> {
        let rules = self.rules;
        self.writer
            .write(move |sql| changes::put_agent(sql, &rules, &agent, at_ms))
    }

    fn remove_agent(&self, agent: AgentId, at_ms: u64) -> Result<(), StoreError> {
        let rules = self.rules;
        self.writer
            .write(move |sql| changes::remove_agent(sql, &rules, agent, at_ms))
    }

    fn agents(&self) -> Result<Vec<AgentRecord>, StoreError> {
        queries::agents(&mut **self.reader())
    }

    fn open_lease(&self, lease: LeaseRecord, at_ms: u64) -> Result<(), StoreError> {
        let rules = self.rules;
        self.writer
            .write(move |sql| changes::open_lease(sql, &rules, &lease, at_ms))
    }

    fn open_lease_later(&self, lease: LeaseRecord, at_ms: u64, told: DoneCallback<()>) {
        let rules = self.rules;
        self.writer
            .submit(move |sql| changes::open_lease(sql, &rules, &lease, at_ms), told);
    }

    fn lease(&self, lease: LeaseId) -> Result<Option<LeaseRecord>, StoreError> {
        queries::lease(&mut **self.reader(), lease)
    }

    fn leases(&self, tenant: Option<&str>) -> Result<Vec<LeaseRecord>, StoreError> {
        queries::leases(
            &mut **self.reader(),
            tenant.map_or(LeaseSelection::All, LeaseSelection::OfTenant),
        )
    }

    fn active_leases(&self) -> Result<u64, StoreError> {
        let active = schema::counter(&mut **self.reader(), ACTIVE)?;
        Ok(u64::try_from(active).unwrap_or(0))
    }

    fn report(&self, report: ReportRecord) -> Result<ReportResult, StoreError> {
        let rules = self.rules;
        self.writer.write(move |sql| changes::report(sql, &rules, &report))
    }

    fn report_later(&self, report: ReportRecord, told: DoneCallback<ReportResult>) {
        let rules = self.rules;
        self.writer
            .submit(move |sql| changes::report(sql, &rules, &report), told);
    }

    fn rows(&self, keys: &[RowKey]) -> Result<Vec<Option<RowState>>, StoreError> {
        let mut reader = self.reader();
        keys.iter().map(|key| queries::row(&mut **reader, *key)).collect()
    }

    fn functions(&self, keys: &[RowKey]) -> Result<Vec<FunctionTotals>, StoreError> {
        let mut reader = self.reader();
        keys.iter().map(|key| functions::of(&mut **reader, *key)).collect()
    }

    fn bill(&self, query: &BillQuery) -> Result<Bill, StoreError> {
        queries::bill(&mut **self.reader(), query)
    }

    fn audit(&self, now_ms: u64) -> Result<Audit, StoreError> {
        let mut reader = self.reader();
        let mut audit = queries::audit(&mut **reader, now_ms)?;
        let Some(own) = &self.own else {
            return Ok(audit);
        };
        reader.query(&own.check, &[], &mut |row| {
            match &row[..] {
                [Cell::Text(fine)] if fine == "ok" => {}
                [Cell::Text(problem)] => audit.problems.push(problem.clone()),
                _ => audit.problems.push("the database cannot be checked".into()),
            }
            Ok(())
        })?;
        Ok(audit)
    }

    fn put_wish(&self, agent: AgentId, wish: NodeWish, order: Option<OrderRecord>) -> Result<(), StoreError> {
        let rules = self.rules;
        self.writer.write(move |sql| {
            wishes::put(sql, &rules, agent, &wish)?;
            order.iter().try_for_each(|order| orders::put(sql, order))
        })
    }

    fn forget_order(&self, agent: AgentId, number: u64) -> Result<(), StoreError> {
        self.writer.write(move |sql| orders::remove(sql, agent, number))
    }

    fn orders(&self) -> Result<Vec<OrderRecord>, StoreError> {
        orders::all(&mut **self.reader())
    }

    fn remove_wish(&self, agent: AgentId) -> Result<(), StoreError> {
        self.writer.write(move |sql| wishes::remove(sql, agent))
    }

    fn wishes(&self) -> Result<Vec<(AgentId, NodeWish)>, StoreError> {
        wishes::all(&mut **self.reader())
    }

    fn end_error(&self) -> Option<StoreError> {
        self.writer.ended()
    }

    fn probe(&self) -> Result<(), StoreError> {
        self.writer.write(|sql| schema::add(sql, PROBES, 1).map(|_| ()))
    }

    fn latest_ms(&self) -> Result<u64, StoreError> {
        let latest = schema::counter(&mut **self.reader(), LATEST_MS)?;
        Ok(u64::try_from(latest).unwrap_or(0))
    }
}

impl TenantStore for DatabaseStore {
    fn tenants(&self) -> Result<Vec<TenantRecord>, StoreError> {
        people::tenants(&mut **self.reader())
    }

    fn put_tenant(&self, tenant: TenantRecord, condition: PutCondition) -> Result<bool, StoreError> {
        let limits = self.rules.limits;
        self.writer
            .write(move |sql| people::put_tenant(sql, &limits, (&tenant, condition)))
    }

    fn remove_tenant(&self, name: &str) -> Result<bool, StoreError> {
        let name = name.to_owned();
        self.writer.write(move |sql| people::remove_tenant(sql, &name))
    }

    fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        people::keys(&mut **self.reader())
    }

    fn put_key(&self, key: KeyRecord) -> Result<(), StoreError> {
        let limits = self.rules.limits;
        self.writer.write(move |sql| people::put_key(sql, &limits, &key))
    }
}
