//! `hotlease bench soak`: memory and descriptors before and after many invocations of every kind.

use super::bench_platform::BenchPlatform;
use super::measured_lease::{MeasuredLease, hot};
use super::process::ProcessUsage;
use super::record::{Figures, Record, Target, params, print};
use anyhow::ensure;
use clap::Args;
use hotlease_client::Function;
use hotlease_terminal::output::Printer;

/// Run synchronous, pipelined and submitted invocations in turn, and a new registered buffer in each round. Memory
/// and descriptors are first read after two rounds
#[derive(Debug, Args)]
pub(super) struct SoakArgs {
    /// Number of invocations in all
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    invocations: u64,
}

const INPUT: [u8; 8] = [3; 8];
const ROUND: usize = 3000;
const IN_FLIGHT: usize = 32;
const BUFFER_BYTES: usize = 64 << 10;
/// Largest allowed growth of a process's memory. It is not 0, because allocators and kernels round.
const GROWTH_BYTES_MAX: f64 = 1e6;

pub(super) fn carry_out(args: &SoakArgs, output: &mut Printer) -> anyhow::Result<()> {
    let host = BenchPlatform::find_or_start()?;
    let stage = MeasuredLease::start(&host, hot(), 0)?;
    let (echo, touch) = (stage.invoker.function("echo")?, stage.invoker.function("touch")?);
    let processes = [
        ("client", std::process::id()),
        ("worker", stage.worker_pid),
        ("platform", host.pid()?),
    ];
    let look = || {
        processes
            .iter()
            .map(|(_, pid)| ProcessUsage::of_process(*pid))
            .collect::<anyhow::Result<Vec<_>>>()
    };
    let mut done = 0;
    // Two rounds: the first fills pools and caches, which then keep their size.
    for _ in 0..2 {
        done += round(&stage, &echo, &touch)?;
    }
    let before = look()?;
    while done < args.invocations {
        done += round(&stage, &echo, &touch)?;
    }
    let after = look()?;

    let mut records = Vec::new();
    for (((name, _), before), after) in processes.iter().zip(&before).zip(&after) {
        let mut change = |unit, before: u64, after: u64, limit: f64| {
            let params = params! { "process": name, "invocations": done };
            let mut record = Record::new("soak", params, unit, Figures::Change { before, after }, &stage.machine);
            record.samples = done;
            // If other clients use the platform, too, they may be the cause of its changes.
            if *name != "platform" || host.is_private() {
                let what = format!("{name}: {unit} more at the end");
                record
                    .targets
                    .push(Target::at_most(what, after as f64 - before as f64, limit));
            }
            records.push(record);
        };
        change("bytes", before.rss_bytes, after.rss_bytes, GROWTH_BYTES_MAX);
        change("descriptors", before.descriptors, after.descriptors, 0.0);
    }
    stage.invoker.deallocate()?;
    let title = format!("memory and descriptors before (first column) and after {done} invocations (second)");
    print(output, &title, &records, |record| {
        format!(
            "{} {}",
            record.params["process"].as_str().unwrap_or_default(),
            record.unit
        )
    })?;
    output.flush()
}

/// Runs some thousand invocations of every kind. Returns the number of invocations.
fn round(stage: &MeasuredLease, echo: &Function, touch: &Function) -> anyhow::Result<u64> {
    let mut output = [0; 8];
    for _ in 0..ROUND {
        echo.invoke(&INPUT, &mut output)?;
    }
    let mut pipeline = echo.pipeline()?;
    for _ in 0..ROUND {
        if pipeline.len() >= IN_FLIGHT {
            pipeline.pop(&mut output)?;
        }
        pipeline.push(&INPUT)?;
    }
    while pipeline.pop(&mut output)?.is_some() {}
    ensure!(output == INPUT, "an invocation does not echo");
    drop(pipeline);
    for _ in 0..ROUND / IN_FLIGHT {
        let futures = (0..IN_FLIGHT)
            .map(|_| echo.submit(&INPUT))
            .collect::<Result<Vec<_>, _>>()?;
        for future in futures {
            ensure!(future.wait()? == INPUT, "a submitted invocation does not echo");
        }
    }
    let mut buffer = stage.invoker.buffer::<u8>(BUFFER_BYTES)?;
    buffer.fill(9);
    let mut first = [0; 1];
    touch.invoke_buffer(&buffer, &mut first[..])?;
    ensure!(first == [9], "the buffer is not read in place");
    Ok((2 * ROUND + ROUND / IN_FLIGHT * IN_FLIGHT + 1) as u64)
}
