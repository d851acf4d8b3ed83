//! Store of a site in PostgreSQL, with several managers, one of which writes.
//!
//! One row of the database names the writer by its epoch. A manager that takes over raises the epoch. Each transaction
//! first reads the epoch, and locks the row until the transaction ends. So a manager that was regarded as dead, but
//! still runs, can change nothing any more: its transactions are refused, and its writer ends.
//!
//! ```text
//! old leader   begin │ epoch 1? yes, held │ ... │ commit
//! new leader                 epoch := 2 waits ──▶│ begin │ epoch 2? yes │ ...
//! old leader                                              begin │ epoch 1? no: refused, for ever
//! ```

mod parameters;
mod tls;

use crate::StoreError;
use crate::database::DatabaseStore;
use crate::limits::Limits;
use crate::sql::changes::StoreRules;
use crate::sql::{Cell, Cells, Sql, Value, WriterHook, schema};
use postgres::error::SqlState;
use postgres::fallible_iterator::FallibleIterator;
use postgres::types::{ToSql, Type};
use postgres::{Client, Config, NoTls, Statement};
use std::collections::HashMap;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};
use tls::Tls;

/// A leader whose beat has not changed for this long is replaced.
const LEADER_SILENT_AFTER: Duration = Duration::from_secs(2);
/// Interval of the leader's beats.
const BEAT_EVERY: Duration = Duration::from_millis(500);
/// Interval at which candidates look at the leader's row.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Time limit for connecting to the server.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Lock that serialises migrations of managers that start at the same time: "hotlease", in ASCII.
const MIGRATION_LOCK: i64 = 0x686f_746c_6561_7365;
/// Limit of statements that a connection keeps prepared; there are a few dozen.
const PREPARED_MAX: usize = 128;

/// Options of a store in PostgreSQL.
#[derive(Clone)]
pub struct PostgresOptions {
    /// Limits of the store (default: [`Limits::DATABASE`]).
    pub limits: Limits,
    /// Whether agents are trusted in reports of leases that no manager of this database granted (default: no; usage of
    /// these leases is recorded, but not billed).
    pub adopt_unknown: bool,
    /// Hook for tests, see [`SqliteOptions::hook`](crate::SqliteOptions::hook).
    pub hook: Option<WriterHook>,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            limits: Limits::DATABASE,
            adopt_unknown: false,
            hook: None,
        }
    }
}

/// Opens a database and takes the lead at once, even if another manager leads it: see [`Candidate`].
pub fn open_postgres(parameters: &str, options: PostgresOptions) -> Result<DatabaseStore, StoreError> {
    let mut candidate = Candidate::new(parameters, options)?;
    loop {
        let leader = candidate.read_leader()?;
        if let Some(store) = candidate.lead(leader)? {
            return Ok(store);
        }
    }
}

/// Row of the leader as a candidate read it. Two equal reads mean that the leader wrote no beat in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LeaderRow {
    epoch: i64,
    /// Counter that rises as long as the leader lives; negative once the leader has left.
    beat: i64,
}

/// A manager that waits for the lead of a database. All calls block on the network.
///
/// ```text
/// wait ──▶ look: a new epoch or beat? ──yes──▶ wait
///               └─no, for LEADER_SILENT_AFTER, or it left──▶ epoch + 1, if still so ──▶ leads
/// ```
pub struct Candidate {
    config: Config,
    /// TLS for a server on another host.
    tls: Option<Tls>,
    options: PostgresOptions,
    sql: Option<PostgresSql>,
    /// Leader's row that was read last, and the time since which it has not changed.
    seen: Option<(LeaderRow, Instant)>,
}

impl Candidate {
    /// Connects to the database, and migrates it to this version.
    ///
    /// `parameters`: for example `host=/run/postgresql dbname=hotlease`, where the server gets the user from the
    /// kernel, or `postgresql://hotlease@db.example/hotlease?passfile=FILE` for a server on another host, over TLS.
    pub fn new(parameters: &str, options: PostgresOptions) -> Result<Self, StoreError> {
        let (mut config, tls) = parameters::read(parameters)?;
        config.connect_timeout(CONNECT_LIMIT).application_name("hotlease");
        let mut candidate = Self {
            config,
            tls,
            options,
            sql: None,
            seen: None,
        };
        candidate.connection()?.migrate()?;
        Ok(candidate)
    }

    fn connection(&mut self) -> Result<&mut PostgresSql, StoreError> {
        let sql = match self.sql.take().filter(|sql| !sql.is_closed()) {
            Some(sql) => sql,
            None => {
                let mut sql = PostgresSql::connect(&self.config, self.tls.as_ref())?;
                sql.demand_durability()?;
                sql
            }
        };
        Ok(self.sql.insert(sql))
    }

    /// Waits until there is no leader or the leader is silent, and then leads. Returns `None` once `stop` returns true;
    /// `stop` is called several times a second. While the database cannot be reached, the candidate tries again,
    /// because no manager leads then.
    pub fn wait(mut self, stop: impl Fn() -> bool) -> Result<Option<DatabaseStore>, StoreError> {
        let mut unreachable = false;
        while !stop() {
            match self.try_lead() {
                Ok(Some(store)) => return Ok(Some(store)),
                Ok(None) => unreachable = false,
                Err(error @ (StoreError::Disk { .. } | StoreError::Unusable { .. })) => {
                    if !unreachable {
                        tracing::warn!(%error, "the database cannot be asked which manager leads; trying again");
                    }
                    unreachable = true;
                    (self.sql, self.seen) = (None, None);
                }
                Err(error) => return Err(error),
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(None)
    }

    fn try_lead(&mut self) -> Result<Option<DatabaseStore>, StoreError> {
        let leader = self.read_leader()?;
        let since = match self.seen {
            Some((seen, since)) if seen == leader => since,
            _ => {
                tracing::debug!(?leader, "the leader is heard");
                Instant::now()
            }
        };
        self.seen = Some((leader, since));
        let left = leader.beat < 0 || leader.epoch == 0;
        if left || since.elapsed() >= LEADER_SILENT_AFTER {
            return self.lead(leader);
        }
        Ok(None)
    }

    fn read_leader(&mut self) -> Result<LeaderRow, StoreError> {
        let mut leader = LeaderRow { epoch: 0, beat: -1 };
        self.connection()?
            .query("SELECT epoch, beat FROM leader", &[], &mut |row| {
                if let [Cell::Int(epoch), Cell::Int(beat)] = row[..] {
                    leader = LeaderRow { epoch, beat };
                }
                Ok(())
            })?;
        Ok(leader)
    }

    /// Takes the lead, unless the leader's row has changed since `leader` was read.
    fn lead(&mut self, leader: LeaderRow) -> Result<Option<DatabaseStore>, StoreError> {
        let Some(epoch) = self.connection()?.raise_epoch(leader)? else {
            return Ok(None);
        };
        tracing::info!(epoch, "leads the database");
        let reader = PostgresSql::connect(&self.config, self.tls.as_ref())?;
        let Some(mut writer) = self.sql.take() else {
            return Ok(None);
        };
        writer.epoch = Some(epoch);
        let rules = StoreRules {
            limits: self.options.limits,
            adopt_unknown: self.options.adopt_unknown,
        };
        DatabaseStore::start(writer, reader, rules, self.options.hook.clone(), None).map(Some)
    }
}

/// Message of the server, which is not in the error's own text, but only in its source.
fn error_text(error: &postgres::Error) -> String {
    match error.as_db_error() {
        Some(said) => format!("{}: {}", said.severity(), said.message()),
        None => match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}

struct PostgresSql {
    /// Connection; taken out only when `self` is dropped.
    client: Option<Client>,
    prepared: HashMap<String, Statement>,
    /// Epoch of this manager, once it leads.
    epoch: Option<i64>,
}

impl PostgresSql {
    fn connect(config: &Config, tls: Option<&Tls>) -> Result<Self, StoreError> {
        let connected = match tls {
            Some(tls) => config.connect(tls.clone()),
            None => config.connect(NoTls),
        };
        Ok(Self {
            client: Some(connected.map_err(|error| parameters::unusable(error_text(&error)))?),
            prepared: HashMap::new(),
            epoch: None,
        })
    }

    /// Makes the server acknowledge a commit only when the commit is on the disk; fails if `fsync` is off.
    fn demand_durability(&mut self) -> Result<(), StoreError> {
        self.run("SET synchronous_commit = on", &[])?;
        // A manager that is stopped within a transaction would keep the leader's row locked, so the server ends idle
        // transactions.
        self.run("SET idle_in_transaction_session_timeout = 2000", &[])?;
        let mut fsync = String::new();
        self.query(
            "SELECT setting FROM pg_settings WHERE name = 'fsync'",
            &[],
            &mut |row| {
                if let [Cell::Text(setting)] = &row[..] {
                    fsync.clone_from(setting);
                }
                Ok(())
            },
        )?;
        if fsync != "on" {
            return Err(parameters::unusable(
                "its `fsync` is off: acknowledged rows would be lost with the power",
            ));
        }
        Ok(())
    }

    fn migrate(&mut self) -> Result<(), StoreError> {
        self.run("BEGIN", &[])?;
        let migrated = self.migrate_within();
        match migrated {
            Ok(()) => self.run("COMMIT", &[]),
            Err(error) => {
                if let Err(worse) = self.run("ROLLBACK", &[]) {
                    tracing::warn!(error = %worse, "a migration that failed was not rolled back either");
                }
                Err(error)
            }
        }
    }

    fn migrate_within(&mut self) -> Result<(), StoreError> {
        // The lock is held until the end of the transaction.
        let lock = "SELECT count(pg_advisory_xact_lock($1))";
        self.query(lock, &[Value::Int(MIGRATION_LOCK)], &mut |_| Ok(()))?;
        self.run("CREATE TABLE IF NOT EXISTS leader (epoch BIGINT NOT NULL)", &[])?;
        // This column was added after the table's first version.
        self.run(
            "ALTER TABLE leader ADD COLUMN IF NOT EXISTS beat BIGINT NOT NULL DEFAULT 0",
            &[],
        )?;
        self.run(
            "CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)",
            &[],
        )?;
        let mut from = None;
        self.query("SELECT version FROM schema_version", &[], &mut |row| {
            if let [Cell::Int(version)] = row[..] {
                from = Some(version);
            }
            Ok(())
        })?;
        if from > Some(schema::VERSION) {
            return Err(StoreError::TooNew {
                path: PathBuf::from("the PostgreSQL database"),
                found: from.unwrap_or_default(),
                known: schema::VERSION,
            });
        }
        schema::migrate(self, from.unwrap_or(0))?;
        let version = [Value::Int(schema::VERSION)];
        match from {
            Some(_) => self.run("UPDATE schema_version SET version = $1", &version),
            None => {
                self.run("INSERT INTO schema_version VALUES ($1)", &version)?;
                self.run("INSERT INTO leader VALUES (0)", &[])
            }
        }
    }

    /// Waits until a transaction of the earlier leader has ended. Then raises the epoch, if the row is still the same
    /// as when it was read.
    fn raise_epoch(&mut self, seen: LeaderRow) -> Result<Option<i64>, StoreError> {
        let mut epoch = None;
        let raise = "UPDATE leader SET epoch = epoch + 1, beat = 0 WHERE epoch = $1 AND beat = $2 RETURNING epoch";
        let seen = [Value::Int(seen.epoch), Value::Int(seen.beat)];
        self.query(raise, &seen, &mut |row| {
            if let [Cell::Int(raised)] = row[..] {
                epoch = Some(raised);
            }
            Ok(())
        })?;
        Ok(epoch)
    }

    fn carry_out(
        &mut self,
        what: &'static str,
        statement: &str,
        values: &[Value<'_>],
        each: &mut dyn FnMut(Cells) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let Some(client) = &mut self.client else {
            return Err(StoreError::Closed {
                why: "the connection to PostgreSQL was given up".into(),
            });
        };
        match Self::rows(client, &mut self.prepared, statement, values, each) {
            Ok(done) => done,
            Err(error) => Err(Self::error(what, &error)),
        }
    }

    fn is_closed(&self) -> bool {
        self.client.as_ref().is_none_or(Client::is_closed)
    }

    fn error(what: &'static str, error: &postgres::Error) -> StoreError {
        let why = error_text(error);
        match error.code() == Some(&SqlState::DISK_FULL) {
            true => StoreError::NoSpace { why },
            false => StoreError::Disk { what, why },
        }
    }

    /// Returns a prepared statement; prepares it the first time.
    fn statement(
        client: &mut Client,
        prepared: &mut HashMap<String, Statement>,
        text: &str,
    ) -> Result<Statement, postgres::Error> {
        if let Some(known) = prepared.get(text) {
            return Ok(known.clone());
        }
        let made = client.prepare(text)?;
        if prepared.len() < PREPARED_MAX {
            prepared.insert(text.to_owned(), made.clone());
        }
        Ok(made)
    }

    fn rows(
        client: &mut Client,
        prepared: &mut HashMap<String, Statement>,
        text: &str,
        values: &[Value<'_>],
        each: &mut dyn FnMut(Cells) -> Result<(), StoreError>,
    ) -> Result<Result<(), StoreError>, postgres::Error> {
        let statement = Self::statement(client, prepared, text)?;
        let null: Option<i64> = None;
        let values = values.iter().map(|value| -> &(dyn ToSql + Sync) {
            match value {
                Value::Int(number) => number,
                Value::Text(text) => text,
                Value::Null => &null,
            }
        });
        let mut rows = client.query_raw(&statement, values)?;
        while let Some(row) = rows.next()? {
            let cells = row.columns().iter().enumerate().map(|(index, column)| {
                Ok(if *column.type_() == Type::INT8 {
                    let number: Option<i64> = row.try_get(index)?;
                    number.map_or(Cell::Null, Cell::Int)
                } else {
                    let text: Option<String> = row.try_get(index)?;
                    text.map_or(Cell::Null, Cell::Text)
                })
            });
            let cells = cells.collect::<Result<Cells, postgres::Error>>()?;
            if let Err(error) = each(cells) {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }
}

/// Drops the client on a thread of its own: a dropped client ends its runtime, which must not happen on a thread of
/// another runtime.
impl Drop for PostgresSql {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            let dropping = thread::spawn(move || drop(client));
            // A panic of that thread was reported when it happened.
            let _ = dropping.join();
        }
    }
}

impl Sql for PostgresSql {
    fn begin(&mut self) -> Result<(), StoreError> {
        self.run("BEGIN", &[])?;
        let Some(ours) = self.epoch else { return Ok(()) };
        let mut found = None;
        self.query("SELECT epoch FROM leader FOR SHARE", &[], &mut |row| {
            if let [Cell::Int(epoch)] = row[..] {
                found = Some(epoch);
            }
            Ok(())
        })?;
        if found == Some(ours) {
            return Ok(());
        }
        Err(StoreError::OtherLeader {
            ours,
            leader: found.unwrap_or_default(),
        })
    }

    fn run(&mut self, statement: &str, values: &[Value<'_>]) -> Result<(), StoreError> {
        self.carry_out("be written", statement, values, &mut |_| Ok(()))
    }

    fn query(
        &mut self,
        statement: &str,
        values: &[Value<'_>],
        each: &mut dyn FnMut(Cells) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.carry_out("be read", statement, values, each)
    }

    fn beat_every(&self) -> Option<Duration> {
        Some(BEAT_EVERY)
    }

    fn beat(&mut self) -> Result<(), StoreError> {
        self.run("UPDATE leader SET beat = beat + 1", &[])
    }

    fn leave(&mut self) {
        let left = self.begin().and_then(|()| {
            self.run("UPDATE leader SET beat = -1", &[])?;
            self.run("COMMIT", &[])
        });
        if let Err(error) = left {
            tracing::debug!(%error, "the next manager has to wait until the silence is noticed");
        }
    }

    fn lost(&mut self) -> Option<StoreError> {
        self.is_closed().then(|| StoreError::Disk {
            what: "be reached",
            why: "the connection to PostgreSQL is closed".into(),
        })
    }
}
