//! The store of a site: PostgreSQL, and several managers of which one writes.
//!
//! Who writes is a row: a manager that takes over raises the epoch in it, and each transaction looks at the
//! epoch first and holds the row until its end. So a manager that was taken for dead and goes on changes
//! nothing any more, whatever it believes: its transactions are refused, and its writer ends.
//!
//! ```text
//! old leader   begin │ epoch 1? yes, held │ ... │ commit
//! new leader                 epoch := 2 waits ──▶│ begin │ epoch 2? yes │ ...
//! old leader                                              begin │ epoch 1? no: refused, for ever
//! ```

use crate::StoreError;
use crate::database::DatabaseStore;
use crate::limits::Limits;
use crate::sql::tables::Rules;
use crate::sql::{Cell, Cells, Hook, Sql, Value, schema};
use postgres::config::Host;
use postgres::error::SqlState;
use postgres::fallible_iterator::FallibleIterator;
use postgres::types::{ToSql, Type};
use postgres::{Client, Config, NoTls, Statement};
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

/// How long the server may take to accept.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Serialises migrations of several managers that start at once: "hotlease", in ASCII.
const MIGRATION_LOCK: i64 = 0x686f_746c_6561_7365;
/// Statements that a connection keeps prepared; there are a few dozen.
const PREPARED_MAX: usize = 128;

/// How a database is used.
#[derive(Clone)]
pub struct PostgresOptions {
    /// Its bounds (default: [`Limits::DATABASE`]).
    pub limits: Limits,
    /// Whether agents are taken at their word about leases that no manager of this database granted
    /// (default: no, they are written down and not billed).
    pub adopt_unknown: bool,
    /// As [`SqliteOptions::hook`](crate::SqliteOptions::hook).
    pub hook: Option<Hook>,
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

/// Opens a database, brings it to this version, and becomes its leader: whoever led it writes no more.
///
/// `parameters`: `host=/run/postgresql dbname=hotlease`, a Unix socket only: the server then knows the user
/// from the kernel, and no password stands anywhere.
pub fn open_postgres(parameters: &str, options: PostgresOptions) -> Result<DatabaseStore, StoreError> {
    let mut config: Config = parameters.parse().map_err(|error| unusable(&error))?;
    config.connect_timeout(CONNECT_LIMIT).application_name("hotlease");
    let local = !config.get_hosts().is_empty()
        && config
            .get_hosts()
            .iter()
            .all(|host| matches!(host, Host::Unix(_)));
    if !local || config.get_password().is_some() {
        return Err(StoreError::Unusable {
            path: PathBuf::from("PostgreSQL"),
            why: "name the server by the directory of its Unix socket (host=/run/postgresql), without a password"
                .into(),
        });
    }
    let mut writer = PostgresSql::connect(&config)?;
    writer.demand_durability()?;
    writer.migrate()?;
    writer.lead()?;
    let reader = PostgresSql::connect(&config)?;
    let rules = Rules {
        limits: options.limits,
        adopt: options.adopt_unknown,
    };
    DatabaseStore::start(writer, reader, rules, options.hook, None)
}

fn unusable(error: &postgres::Error) -> StoreError {
    StoreError::Unusable {
        path: PathBuf::from("PostgreSQL"),
        why: words(error),
    }
}

/// What the server said, which the error itself keeps to its source.
fn words(error: &postgres::Error) -> String {
    match error.as_db_error() {
        Some(said) => format!("{}: {}", said.severity(), said.message()),
        None => match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}

struct PostgresSql {
    client: Client,
    prepared: HashMap<String, Statement>,
    /// Ours, once we lead.
    epoch: Option<i64>,
}

impl PostgresSql {
    fn connect(config: &Config) -> Result<Self, StoreError> {
        Ok(Self {
            client: config.connect(NoTls).map_err(|error| unusable(&error))?,
            prepared: HashMap::new(),
            epoch: None,
        })
    }

    /// A commit is answered when it is on the disk, or this database is not for a ledger.
    fn demand_durability(&mut self) -> Result<(), StoreError> {
        self.run("SET synchronous_commit = on", &[])?;
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
            return Err(StoreError::Unusable {
                path: PathBuf::from("PostgreSQL"),
                why: "its `fsync` is off: acknowledged rows would be lost with the power".into(),
            });
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
        // Until the end of the transaction.
        let lock = "SELECT count(pg_advisory_xact_lock($1))";
        self.query(lock, &[Value::Int(MIGRATION_LOCK)], &mut |_| Ok(()))?;
        self.run("CREATE TABLE IF NOT EXISTS leader (epoch BIGINT NOT NULL)", &[])?;
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

    /// Raises the epoch. Waits for a transaction of the leader before to end.
    fn lead(&mut self) -> Result<(), StoreError> {
        let mut epoch = None;
        let raise = "UPDATE leader SET epoch = epoch + 1 RETURNING epoch";
        self.query(raise, &[], &mut |row| {
            if let [Cell::Int(raised)] = row[..] {
                epoch = Some(raised);
            }
            Ok(())
        })?;
        self.epoch = epoch;
        tracing::info!(epoch, "leads the database");
        Ok(())
    }

    fn error(what: &'static str, error: &postgres::Error) -> StoreError {
        let why = words(error);
        match error.code() == Some(&SqlState::DISK_FULL) {
            true => StoreError::NoSpace { why },
            false => StoreError::Disk { what, why },
        }
    }

    fn statement(&mut self, text: &str) -> Result<Statement, postgres::Error> {
        if let Some(known) = self.prepared.get(text) {
            return Ok(known.clone());
        }
        let made = self.client.prepare(text)?;
        if self.prepared.len() < PREPARED_MAX {
            self.prepared.insert(text.to_owned(), made.clone());
        }
        Ok(made)
    }

    fn rows(
        &mut self,
        text: &str,
        values: &[Value<'_>],
        each: &mut dyn FnMut(Cells) -> Result<(), StoreError>,
    ) -> Result<Result<(), StoreError>, postgres::Error> {
        let statement = self.statement(text)?;
        let null: Option<i64> = None;
        let values = values.iter().map(|value| -> &(dyn ToSql + Sync) {
            match value {
                Value::Int(number) => number,
                Value::Text(text) => text,
                Value::Null => &null,
            }
        });
        let mut rows = self.client.query_raw(&statement, values)?;
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
        Err(StoreError::Deposed {
            ours,
            leader: found.unwrap_or_default(),
        })
    }

    fn run(&mut self, statement: &str, values: &[Value<'_>]) -> Result<(), StoreError> {
        match self.rows(statement, values, &mut |_| Ok(())) {
            Ok(done) => done,
            Err(error) => Err(Self::error("be written", &error)),
        }
    }

    fn query(
        &mut self,
        statement: &str,
        values: &[Value<'_>],
        each: &mut dyn FnMut(Cells) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        match self.rows(statement, values, each) {
            Ok(done) => done,
            Err(error) => Err(Self::error("be read", &error)),
        }
    }

    fn lost(&mut self) -> Option<StoreError> {
        self.client.is_closed().then(|| StoreError::Disk {
            what: "be reached",
            why: "the connection to PostgreSQL is closed".into(),
        })
    }
}
