//! Requests of agents for an environment: the response names the agent from which the environment is to be read.
//! [`crate::state::image_trees`] holds the trees.

use crate::agents::membership::check_owner;
use crate::records::bad_request;
use crate::state::ManagerState;
use hotlease_lease::manager::AgentState;
use hotlease_net::Peer;
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{FindImageRequest, ImageSource};
use hotlease_wire::ids::AgentId;

/// Finds the agent from which an agent is to read an environment.
pub(crate) fn find(
    state: &ManagerState,
    request: &FindImageRequest,
    owner: Option<&Peer>,
) -> Result<ImageSource, Rejection> {
    let agent_id = |text: &str| -> Result<AgentId, Rejection> {
        text.parse()
            .map_err(|_| bad_request("agent id is not 16 hexadecimal digits"))
    };
    let who = agent_id(&request.agent)?;
    check_owner(state, who, owner)?;
    let without = match request.without.as_str() {
        "" => None,
        agent => Some(agent_id(agent)?),
    };
    let image = request.image.parse();
    let image = image.map_err(|_| bad_request("an environment's hash has 64 hexadecimal digits"))?;
    let endpoint = |agent: AgentId| {
        let machine = state.machine();
        let (record, heard, _) = machine.cluster.registry().agent(agent)?;
        let is_there = heard == AgentState::Serving && !record.endpoint.is_empty();
        is_there.then(|| record.endpoint.clone())
    };
    // No other agent can read from an agent that cannot be asked, so it gets no place in the tree.
    if endpoint(who).is_none() {
        return Ok(ImageSource::default());
    }
    let above = state
        .images
        .source_of(image, (who, without), state.now(), |agent| endpoint(agent).is_some());
    let found = above.and_then(|agent| Some((agent, endpoint(agent)?)));
    Ok(
        found.map_or_else(ImageSource::default, |(agent, endpoint)| ImageSource {
            agent: agent.to_string(),
            endpoint,
        }),
    )
}
