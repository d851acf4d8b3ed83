//! `hotlease bench model`: cost of invocations over a channel, and accuracy of its prediction.

use super::bench_platform::BenchPlatform;
use super::fabric::{TransportArgs, lease};
use super::host_info::HostInfo;
use super::measured_lease::{hot, pin_apart, spin_for};
use super::record::{Figures, Record, params, print};
use super::samples::{Clock, Samples};
use clap::Args;
use hotlease_client::{Function, Invoker, Model, Work, WorkPlan};
use hotlease_terminal::output::Printer;
use hotlease_terminal::quantity;
use std::time::{Duration, Instant};

/// Measure latency, overheads, gap, and cost of each byte. Then measure round trips, and tasks that a plan divides
/// between client and slot, next to the prediction of the model.
#[derive(Debug, Args)]
pub(super) struct ModelArgs {
    #[command(flatten)]
    transports: TransportArgs,
    /// Tasks of each plan
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    tasks: u32,
}

/// Payload sizes, in bytes, for which round trips are predicted.
const PAYLOADS: [usize; 3] = [64, 1 << 10, 6 << 10];
const TIMES: [Duration; 3] = [
    Duration::from_micros(10),
    Duration::from_micros(100),
    Duration::from_millis(1),
];
/// Largest payload from which the model is derived. It fits into the ring.
const LARGEST: usize = 8000;
const RUNS: usize = 201;
const PLANS: usize = 11;

pub(super) fn carry_out(args: &ModelArgs, output: &mut Printer) -> anyhow::Result<()> {
    let host = BenchPlatform::find_or_start()?;
    let shm = args.transports.shm().then_some("shm");
    for transport in shm.into_iter().chain(args.transports.fabrics()) {
        let invoker = lease(&host, transport, hot())?;
        let (_, cores, _pinned) = pin_apart(&invoker)?;
        let machine = HostInfo::here(cores);
        let work = invoker.function("work")?.on_slot(0)?;
        let model = Model::measure(&work, LARGEST, |input, output| request(Duration::ZERO, input, output))?;
        let mut records = vec![learned(&invoker, &model, &machine)];
        for time in TIMES {
            for payload in PAYLOADS {
                records.push(round_trips(&work, &model, payload, time, &machine)?);
            }
        }
        for time in TIMES {
            records.push(shared(&invoker, &work, &model, args.tasks as usize, time, &machine)?);
        }
        let title = format!(
            "the model of a channel over {}, and its predictions",
            invoker.transport()
        );
        for record in &mut records {
            let transport = invoker.transport().to_owned();
            record.params.insert("transport".into(), transport.into());
        }
        invoker.deallocate()?;
        show(output, &title, &records)?;
    }
    output.flush()
}

fn show(output: &mut Printer, title: &str, records: &[Record]) -> anyhow::Result<()> {
    print(output, title, records, |record| {
        let text = |name: &str| record.params[name].as_u64().unwrap_or(0);
        let time = || quantity::nanoseconds(text("time_us") * 1000);
        match record.params["mode"].as_str() {
            Some("round trip") => {
                format!(
                    "{} there and back, {} each",
                    quantity::bytes(text("size_bytes")),
                    time()
                )
            }
            Some("plan") => format!(
                "{} tasks of {}: {} kept, {} sent",
                text("tasks"),
                time(),
                record.details["local"],
                record.details["remote"]
            ),
            _ => "empty round trip as fitted".to_owned(),
        }
    })?;
    if output.is_json() {
        return Ok(());
    }
    for record in records {
        let Some(error) = record.details.get("error_percent") else {
            let names = ["latency_ns", "send_overhead_ns", "receive_overhead_ns", "gap_ns"];
            for name in names.iter().chain(&["input_byte_ns", "output_byte_ns"]) {
                output.line(&format!("  {name:<20} {}", record.details[*name]))?;
            }
            continue;
        };
        output.line(&format!("  error of the prediction: {error} %"))?;
    }
    output.line("")
}

/// Input of the function that spins for `time` and returns `output` bytes.
fn request(time: Duration, input: usize, output: usize) -> Vec<u8> {
    let mut request = Vec::with_capacity(input.max(16));
    request.extend((time.as_nanos() as u64).to_le_bytes());
    request.extend((output as u64).to_le_bytes());
    request.resize(input.max(16), 0);
    request
}

fn learned(invoker: &Invoker, model: &Model, machine: &HostInfo) -> Record {
    let empty = model.round_trip(0, 0, Duration::ZERO).as_nanos() as u64;
    let params = params! { "mode": "parameters", "workers": invoker.slots() };
    let figures = Figures::Times { p50: empty, p99: empty };
    let mut record = Record::new("model", params, "ns", figures, machine);
    let ns = |seconds: f64| super::record::round(seconds * 1e9);
    record.details = params! {
        "latency_ns": ns(model.latency),
        "send_overhead_ns": ns(model.send_overhead),
        "receive_overhead_ns": ns(model.receive_overhead),
        "gap_ns": ns(model.gap),
        "input_byte_ns": ns(model.input_byte),
        "output_byte_ns": ns(model.output_byte),
    };
    record
}

fn round_trips(
    work: &Function,
    model: &Model,
    payload: usize,
    time: Duration,
    machine: &HostInfo,
) -> anyhow::Result<Record> {
    let (input, mut output) = (request(time, payload, payload), vec![0; payload]);
    let mut samples = Samples::new()?;
    for ns in Clock::calibrate()
        .block(10, RUNS, || work.invoke(&input, &mut output).map(drop))?
        .0
    {
        samples.add(ns);
    }
    let params = params! {
        "mode": "round trip", "size_bytes": payload, "time_us": time.as_micros() as u64, "workers": 1,
    };
    let mut record = Record::new("model", params, "ns", Figures::of(&samples), machine);
    record.samples = samples.len();
    predicted(
        &mut record,
        samples.quantile(0.5),
        model.round_trip(payload, payload, time),
    );
    Ok(record)
}

/// Carries out a plan several times.
fn shared(
    invoker: &Invoker,
    work: &Function,
    model: &Model,
    tasks: usize,
    time: Duration,
    machine: &HostInfo,
) -> anyhow::Result<Record> {
    const PAYLOAD: usize = 64;
    let plan = invoker.plan(
        model,
        &Work {
            tasks,
            input_bytes: PAYLOAD,
            output_bytes: PAYLOAD,
            local_time: time,
            remote_time: time,
        },
    );
    let (mut samples, mut waited) = (Samples::new()?, Samples::new()?);
    for _ in 0..PLANS {
        let (took, waiting) = carry_out_plan(work, &plan, time, PAYLOAD)?;
        samples.add(took.as_nanos() as u64);
        waited.add(waiting.as_nanos() as u64);
    }
    let params = params! {
        "mode": "plan", "tasks": tasks, "size_bytes": PAYLOAD, "time_us": time.as_micros() as u64,
        "workers": invoker.slots(),
    };
    let mut record = Record::new("model", params, "ns", Figures::of(&samples), machine);
    record.samples = samples.len();
    predicted(&mut record, samples.quantile(0.5), plan.predicted);
    record.details.extend(params! {
        "local": plan.local, "remote": plan.remote, "waited_p50_ns": waited.quantile(0.5),
    });
    Ok(record)
}

/// Carries out a plan. Returns the time until all tasks were done, and the client's wait after its own tasks. If there
/// are fewer credits than tasks for the slot, the remaining tasks are sent between the client's own tasks.
fn carry_out_plan(
    work: &Function,
    plan: &WorkPlan,
    time: Duration,
    payload: usize,
) -> anyhow::Result<(Duration, Duration)> {
    let input = request(time, payload, payload);
    let mut sent = Vec::with_capacity(plan.remote);
    let begin = Instant::now();
    let mut kept = plan.local;
    loop {
        while sent.len() < plan.remote {
            match work.try_submit(&input) {
                Ok(invocation) => sent.push(invocation),
                Err(hotlease_client::Error::NoCredit) => break,
                Err(error) => return Err(error.into()),
            }
        }
        if kept == 0 {
            break;
        }
        spin_for(time);
        kept -= 1;
    }
    while sent.len() < plan.remote {
        sent.push(work.submit(&input)?);
    }
    let own = begin.elapsed();
    for invocation in sent {
        invocation.wait()?;
    }
    let all = begin.elapsed();
    Ok((all, all - own))
}

fn predicted(record: &mut Record, measured: u64, predicted: Duration) {
    let predicted = predicted.as_nanos() as u64;
    record.compare(
        "predicted",
        Figures::Times {
            p50: predicted,
            p99: predicted,
        },
    );
    let error = (predicted as f64 - measured as f64) / measured.max(1) as f64 * 100.0;
    record
        .details
        .insert("error_percent".into(), super::record::round(error).into());
}
