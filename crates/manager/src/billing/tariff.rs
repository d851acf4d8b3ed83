//! Prices from a TOML file.
//!
//! ```toml
//! currency = "EUR"
//!
//! [prices]                    # general prices; a price that is left out is 0
//! allocated_core_hour = 0.004
//! computing_core_hour = 0.04
//! hot_core_hour = 0.02
//! memory_gib_hour = 0.001
//!
//! [tenant."uid:1000"]
//! computing_core_hour = 0.03
//! ```

use crate::ManagerError;
use hotlease_lease::ledger::{Prices, Tariff};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Longest file, bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Billionths of a unit of the currency.
const BILLIONTHS: f64 = 1e9;
/// Highest price. Even at this price, the cost of the longest possible usage is far below a bill's largest amount.
const PRICE_MAX: f64 = 1e9;
/// Longest name of a currency, bytes.
const CURRENCY_BYTES_MAX: usize = 16;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TariffFile {
    currency: String,
    #[serde(default)]
    prices: PriceTable,
    #[serde(default)]
    tenant: BTreeMap<String, PriceTable>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct PriceTable {
    allocated_core_hour: Option<f64>,
    computing_core_hour: Option<f64>,
    hot_core_hour: Option<f64>,
    memory_gib_hour: Option<f64>,
}

impl PriceTable {
    /// Returns the prices of this table, with the general price for each price that is left out.
    fn prices(&self, general: Prices) -> Result<Prices, String> {
        let price = |name: &str, own: Option<f64>, general: u64| match own {
            None => Ok(general),
            Some(price) if (0.0..=PRICE_MAX).contains(&price) => Ok((price * BILLIONTHS).round() as u64),
            Some(price) => Err(format!("{name} is {price}; a price is from 0 to {PRICE_MAX}")),
        };
        Ok(Prices {
            allocated_core_hour: price(
                "allocated_core_hour",
                self.allocated_core_hour,
                general.allocated_core_hour,
            )?,
            computing_core_hour: price(
                "computing_core_hour",
                self.computing_core_hour,
                general.computing_core_hour,
            )?,
            hot_core_hour: price("hot_core_hour", self.hot_core_hour, general.hot_core_hour)?,
            memory_gib_hour: price("memory_gib_hour", self.memory_gib_hour, general.memory_gib_hour)?,
        })
    }
}

fn parse(text: &str) -> Result<Tariff, String> {
    let document: TariffFile = toml::from_str(text).map_err(|error| error.to_string())?;
    let currency = document.currency;
    if currency.is_empty() || currency.len() > CURRENCY_BYTES_MAX || currency.chars().any(char::is_control) {
        return Err(format!("the currency's name has 1 to {CURRENCY_BYTES_MAX} bytes"));
    }
    let default = document.prices.prices(Prices::default())?;
    let own = |(tenant, table): (String, PriceTable)| {
        let prices = table.prices(default);
        prices
            .map(|prices| (tenant.clone(), prices))
            .map_err(|why| format!("tenant {tenant}: {why}"))
    };
    Ok(Tariff {
        currency,
        default,
        tenants: document.tenant.into_iter().map(own).collect::<Result<_, _>>()?,
    })
}

/// Reads the prices in a file.
pub fn load_tariff(path: &Path) -> Result<Tariff, ManagerError> {
    let failed = |source| ManagerError::Runtime {
        what: "read the prices in",
        path: path.to_owned(),
        source,
    };
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    parse(&text).map_err(|why| ManagerError::Tariff {
        path: path.to_owned(),
        why,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_have_the_general_prices_except_where_they_have_their_own() {
        let text = "currency = \"EUR\"\n[prices]\nallocated_core_hour = 0.004\nhot_core_hour = 2\n\
                    [tenant.\"uid:7\"]\nhot_core_hour = 0.000000001\nmemory_gib_hour = 1";
        let tariff = parse(text).unwrap();
        assert_eq!(tariff.currency, "EUR");
        assert_eq!(
            *tariff.of("uid:8"),
            Prices {
                allocated_core_hour: 4_000_000,
                hot_core_hour: 2_000_000_000,
                ..Prices::default()
            }
        );
        assert_eq!(
            *tariff.of("uid:7"),
            Prices {
                allocated_core_hour: 4_000_000,
                hot_core_hour: 1,
                memory_gib_hour: 1_000_000_000,
                ..Prices::default()
            }
        );
    }

    #[test]
    fn an_invalid_tariff_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "currency"),
            ("currency = \"\"", "currency"),
            ("currency = \"EUR\"\n[prices]\ncpu = 1", "unknown field `cpu`"),
            (
                "currency = \"EUR\"\n[prices]\nhot_core_hour = -1",
                "hot_core_hour is -1",
            ),
            (
                "currency = \"EUR\"\n[tenant.a]\nmemory_gib_hour = nan",
                "tenant a: memory_gib_hour",
            ),
            ("currency = \"EUR\"\n[price]\n", "unknown field `price`"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(reason), "{text:?}: {error}");
        }
    }
}
