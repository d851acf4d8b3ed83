//! Tests of wishes for nodes.

use crate::fixture::{START_MS, agent, limits, stores};
use hotlease_lease::agent::OfferedCores;
use hotlease_lease::manager::{NodeOrder, NodeWish, OfferWish};
use hotlease_store::StoreError;
use hotlease_wire::ids::AgentId;

fn offer(cores: OfferedCores) -> NodeOrder {
    NodeOrder::Add(OfferWish {
        cores,
        memory_bytes: Some(1 << 30),
        gpus: Some(2),
        by_ms: START_MS,
    })
}

#[test]
fn what_is_wanted_of_a_node_stays_until_it_is_taken_back_whether_or_not_the_node_is_known() {
    let orders = [
        NodeOrder::Drain { by_ms: START_MS + 5 },
        offer(OfferedCores::These([0, 7].into())),
        offer(OfferedCores::These([].into())),
        offer(OfferedCores::Count(3)),
        offer(OfferedCores::All),
        NodeOrder::Remove,
        NodeOrder::Resume,
    ];
    for scene in stores(limits()) {
        let name = scene.name;
        let (known, unknown) = (agent(1, 1), AgentId([2; 8]));
        scene.store.put_agent(known.clone(), START_MS).unwrap();
        let mut wish = NodeWish::default();
        for order in orders.clone() {
            wish = wish.after(order, START_MS);
            for node in [unknown, known.id] {
                scene.store.put_wish(node, wish.clone()).unwrap();
            }
            let expected = vec![(known.id, wish.clone()), (unknown, wish.clone())];
            assert_eq!(scene.store.wishes().unwrap(), expected, "{name}");
        }
        scene.store.remove_agent(known.id, START_MS).unwrap();
        assert_eq!(scene.store.wishes().unwrap().len(), 2, "{name}: a node may come back");
        scene.store.remove_wish(known.id).unwrap();
        scene.store.remove_wish(known.id).unwrap();
        assert_eq!(scene.store.wishes().unwrap(), [(unknown, wish)], "{name}");
    }
}

#[test]
fn wishes_are_bounded() {
    for scene in stores(limits()) {
        let most = limits().agents as u8;
        let wish = NodeWish::default().after(NodeOrder::Remove, START_MS);
        for number in 0..most {
            scene.store.put_wish(AgentId([number; 8]), wish.clone()).unwrap();
        }
        let full = scene.store.put_wish(AgentId([most; 8]), wish.clone());
        assert!(matches!(full, Err(StoreError::Full { .. })), "{}: {full:?}", scene.name);
        scene
            .store
            .put_wish(AgentId([0; 8]), wish.clone())
            .expect("known already");
    }
}
