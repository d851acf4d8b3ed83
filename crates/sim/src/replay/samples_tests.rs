use super::*;

const HEADER: &str = ",date,idle_cpus,idle_nodes,total_nodes\n";

fn samples(rows: &str) -> Result<Trace, Error> {
    parse("file", format!("{HEADER}{rows}").as_bytes())
}

#[test]
fn rows_in_any_order_become_samples_in_order_of_time() {
    let trace =
        samples("0,01-04-22 00:00:10,0.1,7,100\n1,31-03-22 23:58:30,0.2,5,100\n2,01-04-22 00:01:51,0.3,6,101\n")
            .expect("three rows");
    let expected = [(0, 5), (100, 7), (201, 6)].map(|(at, idle)| Sample { at: at * SECOND, idle });
    assert_eq!(trace.samples, expected);
    assert_eq!(trace.nodes, 100, "the number of nodes in most samples");
}

#[test]
fn hour_that_the_clock_jumps_at_summer_time_does_not_count() {
    let trace = samples(
        "0,27-03-22 01:57:26,0,5,9\n0,27-03-22 01:59:06,0,6,9\n0,27-03-22 03:00:46,0,7,9\n0,27-03-22 03:02:26,0,8,9\n",
    )
    .expect("four rows");
    let times: Vec<_> = trace.samples.iter().map(|sample| sample.at / SECOND).collect();
    assert_eq!(times, [0, 100, 200, 300]);
}

#[test]
fn bad_rows_are_named() {
    for (rows, part) in [
        (
            "0,01-04-22 00:00:10,0,5,9\n0,01-13-22 00:00:10,0,5,9\n",
            "row 3: \"01-13-22 00:00:10\" is no date",
        ),
        ("0,01-04-22 24:00:10,0,5,9\n", "row 2: \"01-04-22 24:00:10\" is no date"),
        ("0,01-04-22 00:00:10,0,-5,9\n", "row 2: \"-5\" is no number of nodes"),
        ("0,01-04-22 00:00:10,0,5\n", "row 2: "),
        ("0,01-04-22 00:00:10,0,10,9\n", "row 2: 10 of 9 nodes are idle"),
        ("0,01-04-22 00:00:10,0,5,9\n", "fewer than two samples"),
        ("", "fewer than two samples"),
    ] {
        let error = samples(rows).expect_err(rows).to_string();
        assert!(error.contains(part), "{rows}: {error}");
    }
    let error = parse("file", "date,idle\n".as_bytes())
        .expect_err("no column")
        .to_string();
    assert!(error.contains("no column idle_nodes"), "{error}");
}

#[test]
fn compressed_files_are_read() {
    let folder = std::env::temp_dir().join(format!("hotlease-replay-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("folder");
    let plain = folder.join("samples.csv");
    std::fs::write(
        &plain,
        format!("{HEADER}0,01-04-22 00:00:00,0,5,9\n1,01-04-22 00:01:00,0,6,9\n"),
    )
    .expect("file");
    let expected = read(&plain).expect("plain").samples;
    let status = Command::new("gzip").arg(&plain).status().expect("gzip");
    assert!(status.success(), "gzip: {status}");
    assert_eq!(
        read(&folder.join("samples.csv.gz")).expect("compressed").samples,
        expected
    );
    std::fs::write(folder.join("torn.csv.gz"), b"no gzip").expect("file");
    let error = read(&folder.join("torn.csv.gz")).expect_err("no gzip").to_string();
    assert!(error.contains("torn.csv.gz: gzip cannot decompress it"), "{error}");
    std::fs::remove_dir_all(&folder).expect("folder");
}
