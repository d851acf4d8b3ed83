//! Price of usage: `C = Ca*ta + Cc*tc + Ch*th`, and the memory that was held.
//!
//! Money is counted in billionths of the currency, in integers: sums of lines are exact, and computing a bill again
//! gives the same bill.

use hotlease_wire::session::UsageTotals;
use std::collections::BTreeMap;
use std::fmt;

const NS_PER_HOUR: u128 = 3_600_000_000_000;
const MIB_MS_PER_GIB_HOUR: u128 = 1024 * 3_600_000;

/// Billionths of the currency for one unit of each resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Prices {
    /// Ca: a slot held for an hour, busy or idle.
    pub allocated_core_hour: u64,
    /// Cc: a slot that computes for an hour; added to Ca.
    pub computing_core_hour: u64,
    /// Ch: a slot that polls for an hour; added to Ca.
    pub hot_core_hour: u64,
    /// A GiB of memory held for an hour.
    pub memory_gib_hour: u64,
}

/// Prices of all tenants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tariff {
    /// Name of the currency, for display.
    pub currency: String,
    /// Prices of tenants that have no prices of their own.
    pub default: Prices,
    /// Prices by tenant.
    pub tenants: BTreeMap<String, Prices>,
}

impl Default for Tariff {
    /// A slot that computes or polls costs one unit an hour; holding a slot costs nothing.
    fn default() -> Self {
        Self {
            currency: "core-hours".into(),
            default: Prices {
                computing_core_hour: 1_000_000_000,
                hot_core_hour: 1_000_000_000,
                ..Prices::default()
            },
            tenants: BTreeMap::new(),
        }
    }
}

impl Tariff {
    /// Prices that this tenant pays.
    pub fn of(&self, tenant: &str) -> &Prices {
        self.tenants.get(tenant).unwrap_or(&self.default)
    }
}

/// An amount of money, billionths of the currency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Money(pub u128);

impl fmt::Display for Money {
    /// Writes all nine decimals, so that exported amounts add up.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// Cost of some usage, by its parts, billionths of the currency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Ca*ta
    pub allocated: u128,
    /// Cc*tc
    pub computing: u128,
    /// Ch*th
    pub hot: u128,
    /// Memory held.
    pub memory: u128,
}

impl Cost {
    /// Sum of all parts.
    pub fn total(&self) -> u128 {
        self.allocated + self.computing + self.hot + self.memory
    }
}

/// Cost of this usage; each part is rounded to the nearest billionth.
pub fn cost(prices: &Prices, usage: UsageTotals, memory_mib_ms: u64) -> Cost {
    let part = |price: u64, amount: u64, unit: u128| (u128::from(price) * u128::from(amount) + unit / 2) / unit;
    Cost {
        allocated: part(prices.allocated_core_hour, usage.allocated_ns, NS_PER_HOUR),
        computing: part(prices.computing_core_hour, usage.compute_ns, NS_PER_HOUR),
        hot: part(prices.hot_core_hour, usage.hot_ns, NS_PER_HOUR),
        memory: part(prices.memory_gib_hour, memory_mib_ms, MIB_MS_PER_GIB_HOUR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_is_the_sum_of_its_three_times_and_the_memory() {
        let prices = Prices {
            allocated_core_hour: 4_048_000,
            computing_core_hour: 40_480_000,
            hot_core_hour: 20_000_000,
            memory_gib_hour: 1_000_000,
        };
        let usage = UsageTotals {
            allocated_ns: 2 * 3_600_000_000_000,
            compute_ns: 3_600_000_000_000,
            hot_ns: 1_800_000_000_000,
            invocations: 7,
        };
        let cost = cost(&prices, usage, 2 * 1024 * 3_600_000);
        assert_eq!(
            cost,
            Cost {
                allocated: 8_096_000,
                computing: 40_480_000,
                hot: 10_000_000,
                memory: 2_000_000,
            }
        );
        assert_eq!(Money(cost.total()).to_string(), "0.060576000");
    }

    #[test]
    fn the_largest_usage_at_the_largest_price_does_not_overflow() {
        let prices = Prices {
            allocated_core_hour: u64::MAX,
            computing_core_hour: u64::MAX,
            hot_core_hour: u64::MAX,
            memory_gib_hour: u64::MAX,
        };
        let usage = UsageTotals {
            allocated_ns: u64::MAX,
            hot_ns: u64::MAX,
            compute_ns: u64::MAX,
            invocations: u64::MAX,
        };
        assert!(cost(&prices, usage, u64::MAX).total() > u128::from(u64::MAX));
    }

    #[test]
    fn a_tenant_pays_its_own_prices() {
        let own = Prices {
            hot_core_hour: 5,
            ..Prices::default()
        };
        let tariff = Tariff {
            tenants: BTreeMap::from([("uid:7".to_owned(), own)]),
            ..Tariff::default()
        };
        assert_eq!(*tariff.of("uid:7"), own);
        assert_eq!(*tariff.of("uid:8"), tariff.default);
    }
}
