//! `hotlease bench cold`: time from the request of a lease to the first result, in every kind of sandbox, next to
//! other ways to start the same program.
//!
//! * [`program`] — the started programs: a function in C, Python, Python with packages.
//! * [`leases`] — start by a lease, with or without a waiting worker.
//! * [`runtimes`] — start as a plain process, in bubblewrap, in container runtimes, and in a plain Linux in QEMU.
//! * [`series`] — samples of one combination of program and start, and their record.
//! * [`hot`] — calls inside each kind of sandbox, compared with calls outside.
//! * [`node`] — state of the node: its caches, whether its processes are at rest.

mod hot;
mod leases;
mod node;
mod plain_linux;
mod program;
mod runtimes;
mod series;

use super::host_info::HostInfo;
use super::pin::Cores;
use super::record::{self, Record};
use super::samples::Block;
use clap::{Args, ValueEnum};
use hotlease_sandbox::Kind;
use hotlease_terminal::arguments::MachineArgs;
use hotlease_terminal::output::Printer;
use hotlease_terminal::quantity;
use leases::{StartKind, StartPlatforms};
use program::Program;
use runtimes::Runtimes;
use series::{Sample, Series, SkippedRow};
use std::path::PathBuf;

/// Measure starts until the first byte of a result. Each start is followed by the start of a plain process with the
/// same program, which is the baseline. Starts private platforms: one that prepares nothing, and one that keeps
/// workers ready. Programs and sandboxes that this host lacks are left out and listed. Emulated virtual machines
/// (`--sandbox-emulated`) take a hundred times as long: use fewer rounds, and `--kinds microvm`.
///
/// With `--json`, prints one object per row. details has p25, p75, phases_us (of the start with the median time),
/// why (why no worker was waiting), private_bytes (of a worker after its first call) and papers (by how many times a
/// start is shorter than the figures that papers report).
#[derive(Debug, Args)]
pub(super) struct ColdArgs {
    /// Starts of each kind
    #[arg(long, alias = "samples", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
    /// Starts of each kind with the caches of the node dropped, for all processes and not only ours; needs root [0:
    /// none]
    #[arg(long, default_value_t = 5, value_name = "ROUNDS")]
    dropped: u32,
    /// Interpreter of the Python rows; it must have the hotlease package, and may have numpy, scipy and pandas
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: PathBuf,
    /// Programs to start
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [ProgramKind::C, ProgramKind::Python, ProgramKind::Packages])]
    programs: Vec<ProgramKind>,
    /// Kinds of sandbox to start them in; kinds that this host cannot make are left out
    #[arg(long, value_delimiter = ',', value_name = "KIND", default_values_t = Kind::ALL)]
    kinds: Vec<Kind>,
    /// `shm`, or a provider of libfabric, like `tcp;ofi_rxm`, over which the functions of leases are called
    #[arg(long, default_value = "shm", value_name = "NAME")]
    transport: String,
    #[command(flatten)]
    machine: MachineArgs,
}

/// Kinds of programs to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ProgramKind {
    /// A function in C
    C,
    /// Bare Python
    Python,
    /// Python that imports those of numpy, scipy and pandas that are installed
    Packages,
}

/// A way to start a program: by a tool, or by a lease.
#[derive(Clone, Copy)]
enum Starter {
    Outsider(usize),
    Lease(Kind, StartKind),
}

pub(super) fn carry_out(args: &ColdArgs, output: &mut Printer) -> anyhow::Result<()> {
    let (programs, mut skipped) = Program::all(&args.python, &args.programs)?;
    let machine = args.machine.machine();
    let leases = StartPlatforms::new(&machine, &args.transport)?;
    let machines = args.kinds.contains(&Kind::MicroVm).then_some(&machine);
    let (outsiders, absent) = Runtimes::find(&programs, machines)?;
    skipped.extend(absent);
    let mut ways: Vec<Starter> = (0..outsiders.len()).map(Starter::Outsider).collect();
    for &kind in &args.kinds {
        if let Err(why) = leases.available(kind)? {
            skipped.push(SkippedRow::sandbox(kind, why));
            continue;
        }
        ways.extend([
            Starter::Lease(kind, StartKind::First),
            Starter::Lease(kind, StartKind::Warm),
        ]);
        if matches!(kind, Kind::Namespace | Kind::MicroVm) {
            ways.extend([
                Starter::Lease(kind, StartKind::Zygote),
                Starter::Lease(kind, StartKind::Fork),
            ]);
        }
    }
    let mut all = Vec::new();
    for program in &programs {
        all.extend(measure(args.rounds, program, &ways, (&leases, &outsiders), false)?);
    }
    match node::check_cache_drop(args.dropped) {
        Ok(()) => {
            let ways: Vec<Starter> = ways
                .into_iter()
                .filter(|way| matches!(way, Starter::Outsider(_) | Starter::Lease(_, StartKind::First)))
                .collect();
            for program in &programs {
                all.extend(measure(args.dropped, program, &ways, (&leases, &outsiders), true)?);
            }
        }
        Err(why) => skipped.push(SkippedRow::new("with caches dropped", why)),
    }
    let machine = HostInfo::here(Cores::default());
    let mut records = Vec::new();
    for series in all {
        match series.record(&machine) {
            Ok(record) => records.push(record),
            Err(why) => skipped.push(why),
        }
    }
    if leases.is_local() {
        records.extend(hot::rows(&leases, &args.kinds, args.rounds)?);
    }
    show(output, &records, &skipped)
}

/// Starts a program in all ways, alternately, the same number of times in each way.
fn measure(
    rounds: u32,
    program: &Program,
    ways: &[Starter],
    (leases, outsiders): (&StartPlatforms, &Runtimes),
    dropped: bool,
) -> anyhow::Result<Vec<Series>> {
    let mut all = Vec::with_capacity(ways.len());
    let has = |way: &&Starter| match way {
        Starter::Outsider(number) => outsiders.starts(*number, program),
        Starter::Lease(_, StartKind::Zygote | StartKind::Fork) => !program.imports.is_empty(),
        Starter::Lease(..) => true,
    };
    let ways: Vec<&Starter> = ways.iter().filter(has).collect();
    for way in &ways {
        let (who, start) = match way {
            Starter::Outsider(number) => (outsiders.name(*number), None),
            Starter::Lease(kind, start) => (leases.name(*kind), Some(*start)),
        };
        let transport = start.map_or(leases::SHM, |_| leases.transport());
        all.push(Series::new(program, (who, transport), start, dropped)?);
    }
    let before = || if dropped { node::drop_caches() } else { Ok(()) };
    for _ in 0..rounds {
        for (way, series) in ways.iter().zip(&mut all) {
            if series.has_failed() {
                continue;
            }
            leases.settle()?;
            before()?;
            let baseline = outsiders.plain(program)?;
            // After a plain process nothing has to settle.
            before()?;
            let sample = match way {
                Starter::Outsider(number) => outsiders.start(*number, program).map(Sample::of_time),
                Starter::Lease(kind, start) => leases.start(*kind, *start, program),
            };
            match sample {
                Ok(sample) => series.add(&Block(vec![baseline.as_nanos() as u64]), sample),
                Err(error) => series.fail(error),
            }
        }
    }
    Ok(all)
}

fn show(output: &mut Printer, records: &[Record], skipped: &[SkippedRow]) -> anyhow::Result<()> {
    if output.is_json() {
        records.iter().try_for_each(|record| output.object(record))?;
        return skipped.iter().try_for_each(|skipped| output.object(skipped));
    }
    output.line("cold starts: lease, or start of a process, to first result")?;
    let columns = "PROGRAM, IN, START, >MEDIAN, >QUARTILES, >RATIO, >PRIVATE, OF THE MEDIAN START, ms";
    output.list(records, columns, "nothing was measured", |record| {
        let text = |name: &str| {
            record
                .params
                .get(name)
                .and_then(|value| value.as_str())
                .unwrap_or("")
                .to_owned()
        };
        let detail = |name: &str| record.details.get(name).and_then(|value| value.as_u64());
        let time = |name| detail(name).map(quantity::nanoseconds).unwrap_or_default();
        let phases = record.details.get("phases_us");
        let phases = leases::STEPS.iter().filter_map(|step| {
            let ms = phases?.get(step)?.as_f64()? / 1e3;
            Some(format!("{} {ms:.2}", step.replace('_', " ")))
        });
        vec![
            text("program"),
            text("in"),
            text("start"),
            record.measured.median().map(quantity::nanoseconds).unwrap_or_default(),
            format!("{} {}", time("p25"), time("p75")),
            record.ratio_p50.map(|ratio| format!("{ratio:.2}")).unwrap_or_default(),
            detail("private_bytes").map(quantity::bytes).unwrap_or_default(),
            phases.collect::<Vec<_>>().join(", "),
        ]
    })?;
    record::print_targets(output, records)?;
    for skipped in skipped {
        output.line(&format!("  left out: {}: {}", skipped.what(), skipped.why()))?;
    }
    output.flush()
}
