//! Time until a first channel works, and a second one, step by step.

use super::{Failure, with_server};
use crate::channel::Channel;
use hotlease_fabric::ofi::providers::find_provider;
use hotlease_fabric::ofi::{Libfabric, Port, providers};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Durations of the steps, in microseconds.
struct Steps(Map<String, Value>);

impl Steps {
    fn take<R>(&mut self, name: &str, step: impl FnOnce() -> Result<R, Failure>) -> Result<R, Failure> {
        let begin = Instant::now();
        let result = step()?;
        self.0.insert(name.into(), json!(begin.elapsed().as_micros()));
        Ok(result)
    }
}

/// Prints one JSON object for each of two channels. The first channel has to load the library, so this must be the
/// first action of a process. `name`: `None` takes the best provider.
pub fn startup(path: &Path, name: Option<&str>) -> Result<(), Failure> {
    let loopback = "127.0.0.1".parse()?;
    for which in ["first", "second"] {
        let mut steps = Steps(Map::new());
        let begin = Instant::now();
        let library = steps.take("load", || Ok(Libfabric::load_from(path)?))?;
        let provider = steps.take("choose", || match name {
            Some(name) => Ok(find_provider(&library, name, Some(loopback))?),
            None => providers(&library, Some(loopback))
                .into_iter()
                .next()
                .ok_or_else(|| "none".into()),
        })?;
        let client = steps.take("client port", || Ok(Port::open(&provider)?))?;
        let slot = steps.take("slot port", || Ok(Port::open(&provider)?))?;
        let to_slot = client.peer(&slot.address(), 1)?;
        let _to_client = slot.peer(&client.address(), 1)?;
        let drive = |stop: &std::sync::atomic::AtomicBool| {
            while !stop.load(Ordering::Relaxed) {
                slot.progress();
                std::thread::yield_now();
            }
            Ok(())
        };
        with_server(drive, || {
            steps.take("probe", || Ok(client.probe(&to_slot, Duration::from_secs(20))?))
        })?;
        let total = begin.elapsed().as_micros();
        let mut channel = steps.take("channel on ports of its own", || Channel::open(&provider, true))?;
        let (asking, serving) = channel.split();
        with_server(
            |stop| serving.echo(stop),
            || steps.take("first round trip", || asking.round_trip(&[1; 8], &mut [0; 8])),
        )?;
        let (major, minor) = library.version();
        let line = json!({
            "bench": "fabric_startup",
            "params": {
                "provider": provider.name(), "library": format!("libfabric {major}.{minor}"), "which": which,
            },
            "unit": "us", "measured": {"until_probed": total}, "steps": steps.0,
        });
        println!("{line}");
    }
    Ok(())
}
