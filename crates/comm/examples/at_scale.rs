//! Which algorithm takes how long at how many ranks, by the model of `hotlease_comm::cost`:
//!
//! ```text
//! cargo run --release --package hotlease-comm --example at_scale -- [RANKS] [ALPHA_US] [GIGABYTES_PER_SECOND]
//! ```
//!
//! What it prints follows from alpha and beta alone; nothing is measured.

#![allow(clippy::print_stdout, reason = "a program that prints")]

use hotlease_comm::cost::{Costs, LinkCost, StoreCost, simulate};
use hotlease_comm::{Algorithm, Blocks, Call, Collective, Recipe};
use std::error::Error;
use std::time::Instant;

const ELEMENT: usize = 8;
/// What copying and reducing takes for each byte of the result.
const LOCAL_BYTE_S: f64 = 0.2e-9;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let ranks: u32 = arguments.next().map_or(Ok(1000), |text| text.parse())?;
    let alpha_us: f64 = arguments.next().map_or(Ok(16.0), |text| text.parse())?;
    let gigabytes: f64 = arguments.next().map_or(Ok(1.0), |text| text.parse())?;
    if ranks < 2 || alpha_us <= 0.0 || gigabytes <= 0.0 {
        return Err("at least 2 ranks, and times greater than 0".into());
    }
    let alpha = alpha_us * 1e-6;
    let link = LinkCost {
        latency_s: alpha,
        message_s: alpha,
        byte_s: 1e-9 / gigabytes,
    };
    let costs = Costs {
        link: &|_, _| link,
        store: StoreCost {
            write_s: 0.0,
            read_s: 0.0,
            byte_s: 0.0,
        },
        reduce_byte_s: LOCAL_BYTE_S,
        copy_byte_s: LOCAL_BYTE_S,
    };
    println!(
        "{ranks} ranks, {alpha_us} us and {gigabytes} GB/s from one to another; times in ms, * the least"
    );
    for bytes in [8, 8 << 10, 1 << 20, 64 << 20] {
        // A linear exchange has a message for each pair of ranks under way at once: too many for any memory.
        let count = bytes / ELEMENT;
        let block = Blocks::Equal((count / ranks as usize).max(1));
        let segment = Some((128 << 10) / ELEMENT);
        for collective in [
            Collective::Broadcast { root: 0, count },
            Collective::Reduce { root: 0, count },
            Collective::Allreduce { count },
            Collective::Allgather { blocks: block },
            Collective::Scan { count },
        ] {
            let operation = collective.operation();
            let began = Instant::now();
            let mut times = Vec::new();
            for &algorithm in operation.algorithms() {
                if algorithm.is_mediated()
                    || (algorithm == Algorithm::Linear && operation != hotlease_comm::Operation::Scan)
                {
                    continue;
                }
                let segment = segment.filter(|_| algorithm == Algorithm::Chain).unwrap_or(0);
                let recipe = Recipe {
                    segment,
                    ..algorithm.into()
                };
                let outcome = simulate(ranks, ELEMENT, &costs, |rank, rounds| {
                    recipe.build_part(&Call::new(collective, rank, ranks), rounds)
                })?;
                times.push((outcome.seconds * 1e3, algorithm));
            }
            let least = times.iter().map(|(time, _)| *time).fold(f64::INFINITY, f64::min);
            let columns: Vec<String> = times
                .iter()
                .map(|(time, name)| format!("{name} {time:.3}{}", if *time == least { "*" } else { "" }))
                .collect();
            let took = began.elapsed().as_secs_f64();
            println!(
                "{operation:>9} of {bytes:>8} bytes: {}  ({took:.1} s to simulate)",
                columns.join(", ")
            );
        }
    }
    Ok(())
}
