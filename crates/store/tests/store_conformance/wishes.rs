//! Tests of wishes for nodes.

use crate::fixture::{START_MS, agent, limits, stores};
use hotlease_lease::agent::{OfferedCores, OfferedGpus};
use hotlease_lease::manager::{NodeOrder, NodeWish, ORDER_KNOWN_MS, OfferWish, OrderRecord, OrderToken};
use hotlease_store::StoreError;
use hotlease_wire::ids::AgentId;

fn offer(cores: OfferedCores, gpus: OfferedGpus) -> NodeOrder {
    NodeOrder::Add(OfferWish {
        cores,
        memory_bytes: Some(1 << 30),
        gpus: Some(gpus),
        by_ms: START_MS,
    })
}

#[test]
fn orders_for_a_node_stay_until_withdrawn_even_if_the_node_is_unknown() {
    let orders = [
        NodeOrder::Drain { by_ms: START_MS + 5 },
        offer(OfferedCores::These([0, 7].into()), OfferedGpus::Count(2)),
        offer(OfferedCores::These([].into()), OfferedGpus::These([].into())),
        offer(OfferedCores::Count(3), OfferedGpus::These([1, 3].into())),
        offer(OfferedCores::All, OfferedGpus::Count(0)),
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
                scene.store.put_wish(node, wish.clone(), None).unwrap();
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
            let agent = AgentId([number; 8]);
            scene.store.put_wish(agent, wish.clone(), None).unwrap();
        }
        let full = scene.store.put_wish(AgentId([most; 8]), wish.clone(), None);
        assert!(matches!(full, Err(StoreError::Full { .. })), "{}: {full:?}", scene.name);
        scene
            .store
            .put_wish(AgentId([0; 8]), wish.clone(), None)
            .expect("known already");
    }
}

#[test]
fn orders_are_known_by_their_tokens_until_their_time_is_over() {
    let order = |caller: &str, token: &str, number: u64, at_ms: u64| OrderRecord {
        token: OrderToken {
            caller: caller.into(),
            token: token.into(),
            content: format!("{number}"),
        },
        agent: AgentId([3; 8]),
        number,
        at_ms,
    };
    for scene in stores(limits()) {
        let (name, store) = (scene.name, &scene.store);
        let put = |order: &OrderRecord| {
            let wish = NodeWish::default().after(NodeOrder::Remove, order.at_ms);
            store.put_wish(order.agent, wish, Some(order.clone())).unwrap();
        };
        let first = order("b", "1", 10, START_MS);
        let others = [order("a", "1", 11, START_MS), order("b", "2", 12, START_MS + 1)];
        put(&first);
        others.iter().for_each(put);
        put(&first);
        let [second, third] = others;
        assert_eq!(
            store.orders().unwrap(),
            [second, first.clone(), third.clone()],
            "{name}"
        );
        store.forget_order(first.agent, 11).unwrap();
        store.forget_order(AgentId([4; 8]), 12).unwrap();
        assert_eq!(store.orders().unwrap(), [first, third.clone()], "{name}");
        let later = order("c", "1", 13, START_MS + 1 + ORDER_KNOWN_MS);
        put(&later);
        assert_eq!(store.orders().unwrap(), [third, later], "{name}");
    }
}
