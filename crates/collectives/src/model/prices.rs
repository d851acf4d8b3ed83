//! Times and prices of links: a TOML file in which every figure has its source.

use crate::choice::LinkKind;
use crate::cost::{LinkCost, StoreCost};
use crate::error::Error;
use serde::Deserialize;
use std::sync::OnceLock;

/// Maximum length of a file that is read.
const BYTES_MAX: usize = 1 << 20;
/// Maximum of any price, of any time in its unit, and of any bandwidth in its unit. Sums of such figures stay finite.
const FIGURE_MAX: f64 = 1e9;
/// Maximum length of a currency's name, in letters.
const CURRENCY_MAX: usize = 16;

/// Origin of figures.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FigureOrigin {
    /// The source.
    pub source: String,
    /// Date when the source was read or the figures were measured: `2026-11-22`.
    pub date: String,
}

/// Price of functions.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionPrice {
    /// Price of a GiB of memory for a second.
    pub gib_second_price: f64,
    /// Source of the figures.
    pub origin: FigureOrigin,
}

/// Price of a server.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerPrice {
    /// Price of an hour.
    pub hour_price: f64,
    /// Source of the figures.
    pub origin: FigureOrigin,
}

/// Speed of a rank's local work.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankTimes {
    /// Copied bytes per second, in units of 1,000,000.
    pub copy_mb_s: f64,
    /// Reduced bytes per second, in units of 1,000,000.
    pub reduce_mb_s: f64,
    /// Source of the figures.
    pub origin: FigureOrigin,
}

impl RankTimes {
    pub(super) fn copy_byte_s(&self) -> f64 {
        byte_s(self.copy_mb_s)
    }

    pub(super) fn reduce_byte_s(&self) -> f64 {
        byte_s(self.reduce_mb_s)
    }
}

/// Times of a link from rank to rank: alpha and beta.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageTimes {
    /// Time from the start of an empty message to its end at the other rank: alpha.
    pub latency_us: f64,
    /// Time from the end of one message of a rank to the start of the rank's next message (default: the latency).
    pub gap_us: Option<f64>,
    /// Bytes per second, in units of 1,000,000: 1 / beta.
    pub bandwidth_mb_s: f64,
    /// Source of the figures.
    pub origin: FigureOrigin,
}

impl MessageTimes {
    pub(super) fn cost(&self) -> LinkCost {
        LinkCost {
            latency_s: self.latency_us / 1e6,
            message_s: self.gap_us.unwrap_or(self.latency_us) / 1e6,
            byte_s: byte_s(self.bandwidth_mb_s),
        }
    }
}

/// Times of a store.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreTimes {
    /// Time from the start of a write until the object can be read.
    pub write_ms: f64,
    /// Time of a read, whether or not the object exists.
    pub read_ms: f64,
    /// Sleep of a reader before it asks again for the first time; doubled each time. Absent: the reader need not ask
    /// again.
    pub poll_first_ms: Option<f64>,
    /// Longest sleep of a reader.
    pub poll_most_ms: Option<f64>,
    /// Bytes per second that one rank writes or reads, in units of 1,000,000.
    pub bandwidth_mb_s: f64,
    /// Bytes per second that all ranks together write, in units of 1,000,000. Absent: no limit.
    pub shared_write_mb_s: Option<f64>,
    /// Bytes per second that all ranks together read, in units of 1,000,000. Absent: no limit.
    pub shared_read_mb_s: Option<f64>,
    /// Objects per second that all ranks together write. Absent: no limit.
    pub shared_writes_per_s: Option<f64>,
    /// Reads per second of all ranks together, successful or not. Absent: no limit.
    pub shared_reads_per_s: Option<f64>,
    /// Source of the figures.
    pub origin: FigureOrigin,
}

impl StoreTimes {
    pub(super) fn cost(&self) -> StoreCost {
        let first = self.poll_first_ms.unwrap_or(0.0);
        StoreCost {
            write_s: self.write_ms / 1e3,
            read_s: self.read_ms / 1e3,
            byte_s: byte_s(self.bandwidth_mb_s),
            shared_write_byte_s: self.shared_write_mb_s.map_or(0.0, byte_s),
            shared_read_byte_s: self.shared_read_mb_s.map_or(0.0, byte_s),
            shared_write_s: self.shared_writes_per_s.map_or(0.0, f64::recip),
            shared_read_s: self.shared_reads_per_s.map_or(0.0, f64::recip),
            poll_first_s: first / 1e3,
            poll_most_s: self.poll_most_ms.unwrap_or(first) / 1e3,
        }
    }
}

/// Prices of requests to a store.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestPrices {
    /// Price of writing a unit.
    pub write_price: f64,
    /// Price of reading a unit, or of a read that finds no object.
    pub read_price: f64,
    /// Price of removing a unit.
    pub remove_price: f64,
    /// Bytes of a unit that is written or removed. Absent: an object of any length is one unit.
    pub write_unit_bytes: Option<u64>,
    /// Bytes of a unit that is read. Absent: an object of any length is one unit.
    pub read_unit_bytes: Option<u64>,
    /// Source of the figures.
    pub origin: FigureOrigin,
}

impl RequestPrices {
    /// Number of units of an object.
    pub(super) fn units(&self, bytes: u64, unit: Option<u64>) -> u64 {
        unit.map_or(1, |unit| bytes.div_ceil(unit).max(1))
    }
}

/// Times and prices of a store between ranks.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorePrices {
    /// Times of the store.
    pub times: StoreTimes,
    /// Price of the store's node, if there is one to pay for.
    pub server: Option<ServerPrice>,
    /// Prices of the store's requests, if they are charged for.
    pub requests: Option<RequestPrices>,
}

/// All links with known figures.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names of `LinkKind`, which says what each is")]
pub struct LinkFigures {
    pub shm: Option<MessageTimes>,
    pub ofi: Option<MessageTimes>,
    pub tcp: Option<MessageTimes>,
    pub redis: Option<StorePrices>,
    pub s3: Option<StorePrices>,
    pub dynamodb: Option<StorePrices>,
}

impl LinkFigures {
    /// Times of a link from rank to rank.
    pub fn message(&self, link: LinkKind) -> Option<&MessageTimes> {
        match link {
            LinkKind::Shm => self.shm.as_ref(),
            LinkKind::Ofi => self.ofi.as_ref(),
            LinkKind::Tcp => self.tcp.as_ref(),
            LinkKind::Redis | LinkKind::S3 | LinkKind::DynamoDb => None,
        }
    }

    /// Times and prices of a link through a store.
    pub fn store(&self, link: LinkKind) -> Option<&StorePrices> {
        match link {
            LinkKind::Redis => self.redis.as_ref(),
            LinkKind::S3 => self.s3.as_ref(),
            LinkKind::DynamoDb => self.dynamodb.as_ref(),
            LinkKind::Shm | LinkKind::Ofi | LinkKind::Tcp => None,
        }
    }

    /// Returns whether there are figures for a link.
    pub fn has(&self, link: LinkKind) -> bool {
        self.message(link).is_some() || self.store(link).is_some()
    }
}

/// Times and prices of links.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkPrices {
    /// Version of the file format: 1.
    pub version: u32,
    /// Currency of all prices.
    pub currency: String,
    /// Functions.
    pub function: FunctionPrice,
    /// The rendezvous that direct links need.
    pub rendezvous: ServerPrice,
    /// Local work of a rank.
    pub rank: RankTimes,
    /// Links by name.
    pub link: LinkFigures,
}

impl LinkPrices {
    /// Prices that are used unless there is a file: `model/prices.toml`, which has the source of each figure.
    pub fn built_in() -> &'static LinkPrices {
        static PRICES: OnceLock<LinkPrices> = OnceLock::new();
        PRICES.get_or_init(|| LinkPrices::parse(include_str!("prices.toml")).expect("a test reads it"))
    }

    /// Reads prices from the text of a file.
    ///
    /// # Errors
    ///
    /// [`Error::Prices`] if the text is not TOML, has an unknown field, has a figure that is invalid or without source
    /// or date, or is longer than 1 MiB.
    pub fn parse(text: &str) -> Result<LinkPrices, Error> {
        let error = |why: String| Error::Prices { why };
        if text.len() > BYTES_MAX {
            return Err(error(format!("{} bytes, the most is {BYTES_MAX}", text.len())));
        }
        let prices: LinkPrices = toml::from_str(text).map_err(|why| error(why.to_string()))?;
        prices.check().map_err(error)?;
        Ok(prices)
    }

    /// Copies the prices, with other times (for instance measured times) for all links from rank to rank.
    ///
    /// # Errors
    ///
    /// [`Error::Prices`] if the times are invalid.
    pub fn with_message_times(&self, times: &MessageTimes) -> Result<LinkPrices, Error> {
        let times = Some(times.clone());
        let prices = LinkPrices {
            link: LinkFigures {
                shm: times.clone(),
                ofi: times.clone(),
                tcp: times,
                ..self.link.clone()
            },
            ..self.clone()
        };
        prices.check().map_err(|why| Error::Prices { why })?;
        Ok(prices)
    }

    fn check(&self) -> Result<(), String> {
        if self.version != 1 {
            return Err(format!("they are of version {}, and 1 is known here", self.version));
        }
        let currency = &self.currency;
        if currency.is_empty() || currency.len() > CURRENCY_MAX || !currency.chars().all(char::is_alphabetic) {
            return Err(format!(
                "the currency {currency:?} is no name of up to {CURRENCY_MAX} letters"
            ));
        }
        let mut checks = FigureChecks::default();
        checks.not_negative("function.gib_second_price", self.function.gib_second_price);
        checks.origin("function", &self.function.origin);
        checks.server("rendezvous", &self.rendezvous);
        checks.positive("rank.copy_mb_s", self.rank.copy_mb_s);
        checks.positive("rank.reduce_mb_s", self.rank.reduce_mb_s);
        checks.origin("rank", &self.rank.origin);
        for (link, name) in LinkKind::NAMES {
            if let Some(times) = self.link.message(link) {
                checks.message(&format!("link.{name}"), times);
            }
            if let Some(store) = self.link.store(link) {
                checks.store(&format!("link.{name}"), store);
            }
        }
        checks.wrong.map_or(Ok(()), Err)
    }
}

fn byte_s(mb_s: f64) -> f64 {
    1e-6 / mb_s
}

/// Checks of figures; keeps the first error.
#[derive(Default)]
struct FigureChecks {
    wrong: Option<String>,
}

impl FigureChecks {
    fn say(&mut self, wrong: String) {
        self.wrong.get_or_insert(wrong);
    }

    fn not_negative(&mut self, name: &str, value: f64) {
        if !(0.0..=FIGURE_MAX).contains(&value) {
            self.say(format!("{name} is {value}; it is from 0 to {FIGURE_MAX}"));
        }
    }

    fn positive(&mut self, name: &str, value: f64) {
        if !(value > 0.0 && value <= FIGURE_MAX) {
            self.say(format!("{name} is {value}; it is more than 0, and up to {FIGURE_MAX}"));
        }
    }

    fn origin(&mut self, name: &str, origin: &FigureOrigin) {
        let date = origin.date.as_bytes();
        let digits = |at: &[usize]| at.iter().all(|&at| date[at].is_ascii_digit());
        let is_date = date.len() == 10 && digits(&[0, 1, 2, 3, 5, 6, 8, 9]) && date[4] == b'-' && date[7] == b'-';
        if origin.source.trim().is_empty() {
            self.say(format!("{name} has no source"));
        } else if !is_date {
            self.say(format!("{name}: {:?} is no date such as 2026-11-22", origin.date));
        }
    }

    fn server(&mut self, name: &str, server: &ServerPrice) {
        self.not_negative(&format!("{name}.hour_price"), server.hour_price);
        self.origin(name, &server.origin);
    }

    fn message(&mut self, name: &str, times: &MessageTimes) {
        self.positive(&format!("{name}.latency_us"), times.latency_us);
        self.not_negative(&format!("{name}.gap_us"), times.gap_us.unwrap_or(0.0));
        self.positive(&format!("{name}.bandwidth_mb_s"), times.bandwidth_mb_s);
        self.origin(name, &times.origin);
    }

    fn store(&mut self, name: &str, store: &StorePrices) {
        let times = &store.times;
        self.positive(&format!("{name}.times.write_ms"), times.write_ms);
        self.positive(&format!("{name}.times.read_ms"), times.read_ms);
        self.positive(&format!("{name}.times.bandwidth_mb_s"), times.bandwidth_mb_s);
        for (field, value) in [
            ("shared_write_mb_s", times.shared_write_mb_s),
            ("shared_read_mb_s", times.shared_read_mb_s),
            ("shared_writes_per_s", times.shared_writes_per_s),
            ("shared_reads_per_s", times.shared_reads_per_s),
            ("poll_first_ms", times.poll_first_ms),
            ("poll_most_ms", times.poll_most_ms),
        ] {
            self.positive(&format!("{name}.times.{field}"), value.unwrap_or(1.0));
        }
        if times
            .poll_most_ms
            .is_some_and(|most| most < times.poll_first_ms.unwrap_or(f64::INFINITY))
        {
            self.say(format!(
                "{name}.times.poll_most_ms needs a poll_first_ms that is not longer"
            ));
        }
        self.origin(&format!("{name}.times"), &times.origin);
        if let Some(server) = &store.server {
            self.server(&format!("{name}.server"), server);
        }
        if let Some(requests) = &store.requests {
            self.not_negative(&format!("{name}.requests.write_price"), requests.write_price);
            self.not_negative(&format!("{name}.requests.read_price"), requests.read_price);
            self.not_negative(&format!("{name}.requests.remove_price"), requests.remove_price);
            if requests.write_unit_bytes == Some(0) || requests.read_unit_bytes == Some(0) {
                self.say(format!("{name}.requests has a unit of no bytes"));
            }
            self.origin(&format!("{name}.requests"), &requests.origin);
        }
    }
}
