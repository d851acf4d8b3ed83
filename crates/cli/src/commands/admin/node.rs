//! `hotlease admin node`: an operator's orders to nodes.

use anyhow::bail;
use clap::{Args, Subcommand};
use hotlease_agent::CoreChoice;
use hotlease_terminal::output::Printer;
use hotlease_terminal::platform::{Platform, SiteArgs};
use hotlease_terminal::quantity;
use hotlease_wire::grpc::{
    CoresWanted, ListRequest, NodeInfo, NodeOrder, OfferWanted, OrderNodeReply, OrderNodeRequest,
};
use serde::Serialize;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Arguments of `hotlease admin node`.
#[derive(Debug, Args)]
pub(super) struct NodeArgs {
    #[command(subcommand)]
    command: NodeCommand,
}

/// Commands for nodes. NODE is the name of a host, or the id of its agent (`hotlease admin node list`).
#[derive(Debug, Subcommand)]
enum NodeCommand {
    List(ListArgs),
    Add(AddArgs),
    Drain(DrainArgs),
    Resume(ResumeArgs),
    Remove(RemoveArgs),
}

/// List nodes, and the orders for them
///
/// With `--json`, prints an object for each node: host, agent, state (serving, draining, drained, standby,
/// stopping; suspected, gone, away), cores, free_cores, gpus, gpu_numbers, free_gpus, memory_bytes, leases, drained (an
/// operator ordered it), drain_left_ms, pending (an order that is not carried out yet), rejected (why the node rejects
/// its latest order), endpoint.
#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    site: SiteArgs,
}

/// The node of an order, and whether to wait for it.
#[derive(Debug, Args)]
struct NodeTargetArgs {
    /// Name of the node's host, or id of its agent
    node: String,
    #[command(flatten)]
    site: SiteArgs,
    /// Name of your choice for this order: if the order is repeated with this name within an hour, it is not carried
    /// out again; a different order with this name is refused
    #[arg(long, value_name = "TEXT")]
    token: Option<String>,
    /// Return when the order is carried out, and print how long that took
    #[arg(long)]
    wait: bool,
    /// Longest time to wait after the notice has passed
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = quantity::parse_time,
          requires = "wait")]
    timeout: Duration,
}

/// Offer a node's cores, all or some, and let it grant leases
///
/// An enlarged offer takes effect at once. If the offer shrinks, free cores are removed first; leases that hold other
/// removed cores end within the notice. The offer stays when the manager or the agent restarts, until the next order.
/// With `--json`: host, agent, done (false: the node is away and gets the order when it returns), and with --wait:
/// state, took_ms.
#[derive(Debug, Args)]
struct AddArgs {
    #[command(flatten)]
    target: NodeTargetArgs,
    /// Cores: `all`, `none` (standby), a count like `2`, or a list like `0,2-5`
    #[arg(long, default_value_t)]
    cores: CoreChoice,
    /// Memory, such as 64G [default: as its agent detects]
    #[arg(long, value_name = "SIZE", value_parser = quantity::parse_bytes)]
    memory: Option<usize>,
    /// GPUs: `none`, a count like `2` (the node's first GPUs), or a list like `0,2-5`; leases that hold other GPUs end
    /// within the notice [default: as its agent was started]
    #[arg(long, value_name = "GPUS", value_parser = parse_gpus)]
    gpus: Option<CoreChoice>,
    /// Notice for leases that hold resources that are no longer offered
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = quantity::parse_notice)]
    within: Duration,
}

/// Grant no leases on a node, and end its leases within a notice
///
/// A node that is away is drained when it returns. A later drain may shorten the notice, but not prolong it. With
/// `--json`, prints the same fields as `add`.
#[derive(Debug, Args)]
struct DrainArgs {
    #[command(flatten)]
    target: NodeTargetArgs,
    /// How long leases may go on; they end sooner if they are released
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = quantity::parse_notice)]
    within: Duration,
}

/// Let a drained node grant leases again; with `--json`, prints the same fields as `add`
#[derive(Debug, Args)]
struct ResumeArgs {
    #[command(flatten)]
    target: NodeTargetArgs,
}

/// Take a node back at once
///
/// Its leases end: running functions are killed, their clients are told, and their usage is recorded. Its agent
/// stays and offers nothing until `add` or `resume`. With `--json`, prints the same fields as `add`.
#[derive(Debug, Args)]
struct RemoveArgs {
    #[command(flatten)]
    target: NodeTargetArgs,
}

#[derive(Serialize)]
struct NodeRow {
    host: String,
    agent: String,
    state: String,
    cores: Vec<u32>,
    free_cores: u32,
    gpus: u32,
    gpu_numbers: Vec<u32>,
    free_gpus: u32,
    memory_bytes: u64,
    leases: u32,
    drained: bool,
    drain_left_ms: u64,
    pending: bool,
    rejected: String,
    endpoint: String,
}

impl From<NodeInfo> for NodeRow {
    fn from(node: NodeInfo) -> Self {
        let agent = node.agent.unwrap_or_default();
        Self {
            host: agent.host,
            agent: agent.id,
            state: agent.state,
            cores: agent.cores,
            free_cores: agent.free_cores,
            gpus: agent.gpus,
            gpu_numbers: agent.gpu_numbers,
            free_gpus: agent.free_gpus,
            memory_bytes: agent.memory_bytes,
            leases: node.leases,
            drained: node.drained,
            drain_left_ms: node.drain_left_ms,
            pending: node.pending,
            rejected: node.rejected,
            endpoint: agent.endpoint,
        }
    }
}

#[derive(Serialize)]
struct OrderSummary {
    host: String,
    agent: String,
    done: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    took_ms: Option<f64>,
}

/// Time between looks at the node while waiting.
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub(super) fn carry_out(args: NodeArgs, output: &mut Printer) -> anyhow::Result<()> {
    let order = |order, within: Duration, offer| OrderNodeRequest {
        node: String::new(),
        order: NodeOrder::into(order),
        within_ms: within.as_millis() as u64,
        offer,
        token: String::new(),
    };
    let none = Duration::ZERO;
    match args.command {
        NodeCommand::List(args) => list(&args.site, output),
        NodeCommand::Add(args) => {
            let offer = offer(&args);
            let nothing = args.cores == CoreChoice::NoCores;
            let request = order(NodeOrder::Add, none, Some(offer));
            let reached: fn(&NodeRow) -> bool = match nothing {
                true => |node| node.state == "standby" && node.leases == 0,
                false => |node| node.state == "serving",
            };
            send_order(&args.target, request, args.within, reached, output)
        }
        NodeCommand::Drain(args) => {
            let request = order(NodeOrder::Drain, args.within, None);
            send_order(&args.target, request, args.within, is_drained, output)
        }
        NodeCommand::Resume(args) => {
            let request = order(NodeOrder::Resume, none, None);
            let reached = |node: &NodeRow| node.state == "serving" || node.state == "standby";
            send_order(&args.target, request, none, reached, output)
        }
        NodeCommand::Remove(args) => {
            let request = order(NodeOrder::Remove, none, None);
            send_order(&args.target, request, none, is_drained, output)
        }
    }
}

fn is_drained(node: &NodeRow) -> bool {
    node.state == "drained"
}

/// Reads a choice of GPUs. `all` is refused, because the number of the agent's GPUs is not known here.
fn parse_gpus(text: &str) -> Result<CoreChoice, String> {
    let bad = || format!("{text:?} names no GPUs: write `none`, a count like `2`, or a list like `0,2-5`");
    match text.parse() {
        // A count of no GPUs.
        Err(_) if text == "0" => Ok(CoreChoice::NoCores),
        Ok(CoreChoice::All) | Err(_) => Err(bad()),
        Ok(choice) => Ok(choice),
    }
}

fn offer(args: &AddArgs) -> OfferWanted {
    let (choice, count, cores) = match &args.cores {
        CoreChoice::All => (CoresWanted::CoresAll, 0, Vec::new()),
        CoreChoice::NoCores => (CoresWanted::CoresThese, 0, Vec::new()),
        CoreChoice::Count(count) => {
            let count = u32::try_from(*count).unwrap_or(u32::MAX);
            (CoresWanted::CoresCount, count, Vec::new())
        }
        CoreChoice::List(cores) => (CoresWanted::CoresThese, 0, cores.clone()),
    };
    let (gpus, gpu_numbers) = match &args.gpus {
        Some(CoreChoice::Count(count)) => (Some(u32::try_from(*count).unwrap_or(u32::MAX)), None),
        Some(CoreChoice::List(gpus)) => (None, Some(gpus.clone())),
        Some(CoreChoice::NoCores) => (Some(0), None),
        Some(CoreChoice::All) | None => (None, None),
    };
    OfferWanted {
        choice: choice.into(),
        count,
        cores,
        memory_bytes: args.memory.unwrap_or(0) as u64,
        gpus,
        gpus_named: gpu_numbers.is_some(),
        gpu_numbers: gpu_numbers.unwrap_or_default(),
        within_ms: args.within.as_millis() as u64,
    }
}

fn nodes(platform: &mut Platform) -> anyhow::Result<Vec<NodeRow>> {
    let list = platform.request(async |client| client.list_nodes(ListRequest::default()).await)?;
    Ok(list.nodes.into_iter().map(NodeRow::from).collect())
}

fn list(site: &SiteArgs, output: &mut Printer) -> anyhow::Result<()> {
    let rows = nodes(&mut Platform::of(site)?)?;
    let columns = "HOST, AGENT, STATE, CORES, >FREE, >GPUS, >MEMORY, >LEASES, WANTED";
    output.list(&rows, columns, "no nodes", |node| {
        let wanted = match (node.drained, node.pending) {
            _ if !node.rejected.is_empty() => format!("rejected an order: {}", node.rejected),
            (true, _) if node.drain_left_ms > 0 && node.state != "drained" => {
                let left = quantity::nanoseconds(node.drain_left_ms.saturating_mul(1_000_000));
                format!("drained in {left}")
            }
            (true, _) => "drained".into(),
            (false, true) => "an order is on its way".into(),
            (false, false) => String::new(),
        };
        vec![
            node.host.clone(),
            node.agent.clone(),
            node.state.clone(),
            quantity::cores(&node.cores),
            node.free_cores.to_string(),
            quantity::free_of(node.free_gpus, node.gpus),
            quantity::bytes(node.memory_bytes),
            node.leases.to_string(),
            wanted,
        ]
    })
}

fn send_order(
    target: &NodeTargetArgs,
    request: OrderNodeRequest,
    notice: Duration,
    reached: impl Fn(&NodeRow) -> bool,
    output: &mut Printer,
) -> anyhow::Result<()> {
    let mut platform = Platform::of(&target.site)?;
    let start = Instant::now();
    let request = OrderNodeRequest {
        node: target.node.clone(),
        token: target.token.clone().unwrap_or_default(),
        ..request
    };
    let OrderNodeReply { agent, host, done } =
        platform.request(async |client| client.order_node(request.clone()).await)?;
    let mut answer = OrderSummary {
        host,
        agent,
        done,
        state: None,
        took_ms: None,
    };
    if target.wait {
        answer.state = Some(wait(&mut platform, &answer.agent, notice + target.timeout, reached)?);
        answer.done = true;
        answer.took_ms = Some((start.elapsed().as_secs_f64() * 1e6).round() / 1e3);
    }
    output.answer(&answer, || {
        let name = match answer.host.as_str() {
            "" => &answer.agent,
            host => host,
        };
        match (&answer.state, answer.took_ms) {
            (Some(state), Some(took_ms)) => {
                format!(
                    "{name} is {state} after {}",
                    quantity::nanoseconds((took_ms * 1e6) as u64)
                )
            }
            _ if answer.done => format!("{name} does it; `hotlease admin node list` shows how far it is"),
            _ => format!("noted; {name} is away, and is told when it comes"),
        }
    })
}

fn wait(
    platform: &mut Platform,
    agent: &str,
    limit: Duration,
    reached: impl Fn(&NodeRow) -> bool,
) -> anyhow::Result<String> {
    let start = Instant::now();
    loop {
        let node = nodes(platform)?.into_iter().find(|node| node.agent == agent);
        let state = match node {
            Some(node) if !node.rejected.is_empty() => {
                bail!("{agent} rejects the order, and does as before: {}", node.rejected)
            }
            Some(node) if !node.pending && reached(&node) => return Ok(node.state),
            Some(node) => node.state,
            None => "not known".into(),
        };
        if start.elapsed() > limit {
            bail!(
                "{agent} is {state} after {}; the order stands, and `hotlease admin node list` shows how far it is",
                quantity::nanoseconds(limit.as_nanos() as u64)
            );
        }
        sleep(LOOK_EVERY);
    }
}
