use super::*;
use crate::algorithm::Blocks;
use crate::collective::Collective;
use crate::datatype::Datatype;
use crate::operator::Operator;

const LINKS: [LinkKind; 6] = [
    LinkKind::Shm,
    LinkKind::Ofi,
    LinkKind::Tcp,
    LinkKind::Redis,
    LinkKind::S3,
    LinkKind::DynamoDb,
];

fn collectives(count: usize) -> Vec<Collective<'static>> {
    let blocks = Blocks::Equal(count);
    vec![
        Collective::Barrier,
        Collective::Broadcast { root: 0, count },
        Collective::Gather { root: 0, blocks },
        Collective::Gatherv {
            root: 0,
            mine: count,
            blocks,
        },
        Collective::Scatter { root: 0, blocks },
        Collective::Scatterv {
            root: 0,
            mine: count,
            blocks,
        },
        Collective::Allgather { blocks },
        Collective::Reduce {
            root: 0,
            count,
            operator: &Operator::Sum,
        },
        Collective::Allreduce {
            count,
            operator: &Operator::Sum,
        },
        Collective::ReduceScatter {
            blocks,
            operator: &Operator::Sum,
        },
        Collective::Scan {
            count,
            operator: &Operator::Sum,
        },
        Collective::Exscan {
            count,
            operator: &Operator::Sum,
        },
        Collective::Alltoall { count },
        Collective::Alltoallv {
            sent: blocks,
            received: blocks,
        },
    ]
}

#[test]
fn every_choice_of_any_table_can_be_built() {
    let empty = Table::parse("version = 1").expect("a table without rules");
    let nodes: Vec<u32> = (0..40).map(|rank| rank % 3).collect();
    let mut asked = 0;
    for link in LINKS {
        for ranks in [1, 2, 3, 8, 9, 40] {
            for count in [0, 1, 100, 5_000, 1_000_000] {
                for collective in collectives(count) {
                    for (commutes, known) in [(true, false), (false, false), (true, true), (false, true)] {
                        let collective = collective.with_operator(Operator::in_order(commutes));
                        let call = CollectiveCall {
                            nodes: known.then_some(&nodes[..ranks as usize]),
                            ..CollectiveCall::new(collective, Datatype::U64, ranks - 1, ranks)
                        };
                        let question = Question::new(&call, link);
                        for (table, is_crowded) in
                            [(Table::built_in(), false), (Table::built_in(), true), (&empty, false)]
                        {
                            let recipe = table.choose(&Question { is_crowded, ..question });
                            let algorithm = recipe.algorithm;
                            assert_eq!(algorithm.is_mediated(), link.is_mediated(), "{algorithm} over {link}");
                            recipe.build(&call).unwrap_or_else(|error| {
                                panic!("{ranks} ranks over {link}: {error}");
                            });
                            asked += 1;
                        }
                    }
                }
            }
        }
    }
    assert_eq!(asked, 6 * 6 * 5 * 14 * 4 * 3);
}

#[test]
fn the_built_in_table_survives_being_written_and_read() {
    let table = Table::built_in();
    assert_eq!(
        &Table::parse(&table.to_string()).expect("what is written can be read"),
        table
    );
    let used: HashSet<_> = table.rules().iter().map(|rule| rule.operation).collect();
    assert!(used.len() > 10, "rules for {used:?} only");
}

#[test]
fn all_ranks_choose_the_same() {
    let (counts, places) = ([3, 0, 5000, 1, 2], [0, 3, 3, 5003, 5004]);
    let reversed = [5006, 5006, 6, 4, 2];
    for collective in [
        Collective::Allgather {
            blocks: Blocks::Each {
                counts: &counts,
                displacements: &places,
            },
        },
        Collective::Gather {
            root: 2,
            blocks: Blocks::Each {
                counts: &counts,
                displacements: &places,
            },
        },
    ] {
        let choices: Vec<Recipe> = (0..5)
            .map(|rank| {
                // The positions of blocks in the output may differ between ranks.
                let displacements = if rank % 2 == 0 { &places } else { &reversed };
                let blocks = Blocks::Each {
                    counts: &counts,
                    displacements,
                };
                let collective = match collective {
                    Collective::Allgather { .. } => Collective::Allgather { blocks },
                    _ => Collective::Gather { root: 2, blocks },
                };
                let call = CollectiveCall {
                    in_place: rank == 1,
                    ..CollectiveCall::new(collective, Datatype::U64, rank, 5)
                };
                Table::built_in().choose(&Question::new(&call, LinkKind::Tcp))
            })
            .collect();
        assert!(choices.windows(2).all(|pair| pair[0] == pair[1]), "{choices:?}");
    }
}

#[test]
fn an_explanation_names_each_rule_up_to_the_one_that_is_followed() {
    let table = Table::parse(
        r#"
        version = 1
        [[rule]]
        operation = "allreduce"
        links = ["shm"]
        algorithm = "rabenseifner"
        [[rule]]
        operation = "broadcast"
        algorithm = "linear"
        [[rule]]
        operation = "allreduce"
        bytes_min = 100
        algorithm = "ring"
        [[rule]]
        operation = "allreduce"
        algorithm = "recursive-doubling"
        [[rule]]
        operation = "allreduce"
        algorithm = "reduce-broadcast"
        "#,
    )
    .expect("a table");
    let operator = Operator::in_order(false);
    let call = CollectiveCall::new(Collective::Allreduce { count: 1000, operator }, Datatype::U64, 0, 4);
    let text = table.explain(&Question::new(&call, LinkKind::Tcp)).to_string();
    assert_eq!(
        text,
        "allreduce of 8000 bytes by 4 ranks over tcp: recursive-doubling\n  \
         rabenseifner, for shm: no: another link\n  \
         ring, for 100 bytes and more: no: it reduces in another order than that of ranks, and the operator does not commute\n  \
         recursive-doubling: yes\n"
    );
    let scan = CollectiveCall::new(
        Collective::Scan {
            count: 1,
            operator: &Operator::Sum,
        },
        Datatype::U64,
        0,
        4,
    );
    let text = table.explain(&Question::new(&scan, LinkKind::S3)).to_string();
    assert_eq!(text, "scan of 8 bytes by 4 ranks over s3: objects, as no rule fits\n");
}

#[test]
fn a_caller_that_measures_gets_everything_that_could_be_done() {
    let nodes = [0, 0, 1, 1];
    let candidates = |collective: Collective, nodes, commutes, link| {
        let collective = collective.with_operator(Operator::in_order(commutes));
        let call = CollectiveCall {
            nodes,
            ..CollectiveCall::new(collective, Datatype::U64, 0, 4)
        };
        let candidates = Question::new(&call, link).candidates();
        assert!(
            candidates.iter().all(|recipe| recipe.build(&call).is_ok()),
            "{candidates:?}"
        );
        candidates.len()
    };
    let allreduce = Collective::Allreduce {
        count: 8,
        operator: &Operator::Sum,
    };
    assert_eq!(candidates(allreduce, None, true, LinkKind::Tcp), 5);
    assert_eq!(candidates(allreduce, None, false, LinkKind::Tcp), 4, "not the ring");
    assert_eq!(candidates(allreduce, Some(&nodes), true, LinkKind::Tcp), 10);
    assert_eq!(candidates(allreduce, Some(&nodes), true, LinkKind::S3), 3);
    // A chain has three candidates, one for each length of segments.
    assert_eq!(
        candidates(Collective::Broadcast { root: 0, count: 8 }, None, true, LinkKind::Shm),
        6
    );
}

#[test]
fn leaders_are_for_several_nodes_of_several_ranks() {
    let choose = |nodes: Option<&[u32]>| {
        let call = CollectiveCall {
            nodes,
            ..CollectiveCall::new(
                Collective::Allreduce {
                    count: 8,
                    operator: &Operator::Sum,
                },
                Datatype::U64,
                0,
                4,
            )
        };
        Table::built_in().choose(&Question::new(&call, LinkKind::Tcp)).by_nodes
    };
    assert!(choose(Some(&[0, 0, 1, 1])));
    assert!(!choose(Some(&[0, 0, 0, 0])), "one node");
    assert!(!choose(Some(&[0, 1, 2, 3])), "one rank on each node");
    assert!(!choose(None), "nothing is known of nodes");
}

#[test]
fn members_that_share_processors_send_the_fewest_messages() {
    let call = CollectiveCall::new(Collective::Barrier, Datatype::U64, 0, 8);
    for link in [LinkKind::Shm, LinkKind::Tcp] {
        let question = Question::new(&call, link);
        let crowded = Question {
            is_crowded: true,
            ..question
        };
        let choose = |question: &Question| Table::built_in().choose(question).algorithm;
        assert_eq!(choose(&crowded), Algorithm::Linear);
        assert_ne!(choose(&question), Algorithm::Linear);
        let text = Table::built_in().explain(&crowded).to_string();
        assert!(text.contains("8 ranks that share processors over"), "{text}");
        let text = Table::built_in().explain(&question).to_string();
        assert!(
            text.contains("each member has a processor, as far as is known"),
            "{text}"
        );
    }
}

#[test]
fn errors_in_a_table_are_named() {
    let rule = |text: &str| format!("version = 1\n[[rule]]\noperation = \"scan\"\n{text}");
    for (text, expected) in [
        ("version = 2".to_string(), "version 2"),
        ("rule = 3".to_string(), "invalid type"),
        (
            rule("algorithm = \"ring\""),
            "rule 1 (scan: ring): there is no such algorithm",
        ),
        (rule("algorithm = \"faster\""), "unknown variant"),
        (rule("algorithm = \"linear\"\nbytes = 3"), "unknown field"),
        (rule("algorithm = \"linear\"\nby_nodes = true"), "two levels"),
        (rule("algorithm = \"linear\"\nlinks = [\"s3\"]"), "stores need"),
        (rule("algorithm = \"linear\"\nsegment_bytes = 3"), "only `chain`"),
        (
            rule("algorithm = \"linear\"\nbytes_min = 3\nbytes_max = 2"),
            "a minimum is more",
        ),
        (format!("version = 1\n#{}", "x".repeat(BYTES_MAX)), "the most is"),
    ] {
        let error = Table::parse(&text).expect_err("a wrong table").to_string();
        assert!(error.contains(expected), "{error:?} does not say {expected:?}");
        assert!(error.starts_with("the table of algorithms: "), "{error}");
    }
}
