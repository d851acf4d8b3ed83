//! DynamoDB Local in a network of its own.

use crate::failures;
use hotlease_comm::LinkChoice;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub const KEY: &str = "member";
pub const SECRET: &str = "right-secret";
/// Maximum time that Java takes to start on a loaded host.
const STARTS_WITHIN: Duration = Duration::from_secs(120);
/// Port of the server. No other program is in its network.
pub const PORT: u16 = 8000;

/// Script that ends the server when the process that started it ends, for any reason.
const SCRIPT: &str = r#"
ip link set lo up || exit
cd "$0" || exit
java -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.library.path=. -cp '*' \
    com.amazonaws.services.dynamodbv2.local.main.ServerRunner -inMemory -disableTelemetry -port "$1" >/dev/null 2>&1 </dev/null &
echo $!
read -r _
kill -9 $! 2>/dev/null
"#;

/// Folder where scripts/setup puts DynamoDB Local.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/dynamodb-local")
}

/// Returns whether this user is root; any other user becomes root in a user namespace.
fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

pub struct Local {
    server: Child,
    pid: u32,
}

impl Local {
    /// Starts a server. Returns `None`, with a message, if there is no DynamoDB Local or no network for it can be
    /// made.
    pub fn start() -> Option<Self> {
        let skip = |why: &str| {
            eprintln!("skipped for DynamoDB: {why}");
            None
        };
        if !folder().join("complete").is_file() {
            return skip("there is no DynamoDB Local (`make setup-tests` gets it from Maven Central)");
        }
        if Command::new("java").arg("-version").output().is_err() {
            return skip("there is no Java to run it (Debian: default-jre-headless)");
        }
        let mut command = Command::new("unshare");
        if !is_root() {
            command.arg("--map-root-user");
        }
        command
            .args(["--net", "sh", "-c", SCRIPT])
            .arg(folder())
            .arg(PORT.to_string());
        let server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let Ok(mut server) = server else {
            return skip("there is no unshare (Debian: util-linux)");
        };
        let mut line = String::new();
        let mut output = BufReader::new(server.stdout.take().expect("piped"));
        output.read_line(&mut line).expect("a line or the end");
        let Ok(pid) = line.trim().parse() else {
            let _ = server.wait();
            return skip(
                "no network of its own can be made here, by this user, and it would listen on all of this one",
            );
        };
        Some(Self { server, pid })
    }

    /// Runs one of the tests as a process in the server's network, with this key.
    pub fn run(&self, test: &str, key: &str) {
        let mut child = Command::new("nsenter");
        child.args(["--net", "--target", &self.server.id().to_string()]);
        if !is_root() {
            child.args(["--user", "--preserve-credentials"]);
        }
        child.arg(std::env::current_exe().expect("this program"));
        child.args(["--exact", &format!("dynamodb::{test}"), "--ignored", "--nocapture"]);
        child.env("HOTLEASE_TEST_PID", self.pid.to_string());
        child.env("AWS_ACCESS_KEY_ID", key).env("AWS_SECRET_ACCESS_KEY", SECRET);
        // The configuration of the user who runs the tests is not used.
        child
            .env("AWS_CONFIG_FILE", "/dev/null")
            .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null");
        let output = child.output().expect("it runs");
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        let has_run = output.status.success() && out.contains("1 passed");
        assert!(has_run, "{test}: {}\n{out}\n{err}", output.status);
    }

    /// Runs a test with the one server that all tests of this process share; each test has its own table.
    pub fn run_shared(test: &str) {
        Self::run_as(test, KEY);
    }

    pub fn run_as(test: &str, key: &str) {
        static SHARED: OnceLock<Option<Local>> = OnceLock::new();
        if let Some(local) = SHARED.get_or_init(Self::start) {
            local.run(test, key);
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // The end of its input ends the server.
        drop(self.server.stdin.take());
        let _ = self.server.wait();
    }
}

/// Returns the link of the process that a test has started, once the server accepts connections, or `None` if this
/// process was not started by a test.
pub fn link(table: &str) -> Option<LinkChoice> {
    std::env::var_os("HOTLEASE_TEST_PID")?;
    let begun = Instant::now();
    while TcpStream::connect((Ipv4Addr::LOCALHOST, PORT)).is_err() {
        assert!(begun.elapsed() < STARTS_WITHIN, "DynamoDB Local does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    Some(link_with(table, ""))
}

pub fn link_with(table: &str, more: &str) -> LinkChoice {
    text(table, PORT, more).parse().expect("a link")
}

pub fn text(table: &str, port: u16, more: &str) -> String {
    format!("dynamodb://{table}?endpoint=http://127.0.0.1:{port}&region=us-east-1{more}")
}

/// Sends a request to the server in its own protocol.
pub fn ask(what: &str, body: &str) -> String {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, PORT)).expect("it is there");
    let length = body.len();
    let request = format!(
        "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/x-amz-json-1.0\r\n\
         Content-Length: {length}\r\nX-Amz-Target: DynamoDB_20120810.{what}\r\nX-Amz-Date: 20260101T000000Z\r\n\
         Authorization: AWS4-HMAC-SHA256 Credential={KEY}/20260101/us-east-1/dynamodb/aws4_request, \
         SignedHeaders=host;x-amz-date;x-amz-target, Signature=0\r\n\r\n{body}"
    );
    server.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    server.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{what} {body}: {answer}");
    answer
}

/// Number of items in a table.
pub fn items(table: &str) -> u64 {
    let answer = ask(
        "Scan",
        &format!(r#"{{"TableName": "{table}", "Select": "COUNT", "ConsistentRead": true}}"#),
    );
    let count = answer.split("\"Count\":").nth(1).expect("a count");
    let digits: String = count.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// Description of a table with these keys, which are strings.
pub fn table(name: &str, keys: &[(&str, &str)]) -> String {
    let list = |one: &dyn Fn(&(&str, &str)) -> String| keys.iter().map(one).collect::<Vec<_>>().join(", ");
    let attributes = list(&|(key, _)| format!(r#"{{"AttributeName": "{key}", "AttributeType": "S"}}"#));
    let schema = list(&|(key, kind)| format!(r#"{{"AttributeName": "{key}", "KeyType": "{kind}"}}"#));
    format!(
        r#"{{"TableName": "{name}", "BillingMode": "PAY_PER_REQUEST", "AttributeDefinitions": [{attributes}], "KeySchema": [{schema}]}}"#
    )
}

/// Makes the table with the command that the error about a missing table suggests.
pub fn make(link: &LinkChoice) {
    let text = failures::refusal(link);
    let command = text
        .split('`')
        .find(|part| part.starts_with("aws dynamodb create-table"));
    let command = command.unwrap_or_else(|| panic!("no command: {text}"));
    let words: Vec<&str> = command.split_whitespace().collect();
    let behind = |flag: &str| {
        let at = words.iter().position(|word| *word == flag).expect(flag);
        words[at + 1..]
            .iter()
            .take_while(|word| !word.starts_with("--"))
            .copied()
    };
    assert_eq!(
        behind("--billing-mode").collect::<Vec<_>>(),
        ["PAY_PER_REQUEST"],
        "{command}"
    );
    assert!(
        behind("--attribute-definitions").all(|word| word.ends_with(",AttributeType=S")),
        "{command}"
    );
    let keys = behind("--key-schema").map(|word| {
        let (name, kind) = word.split_once(",KeyType=").expect(word);
        (name.trim_start_matches("AttributeName="), kind)
    });
    let name = behind("--table-name").next().expect("a name");
    ask("CreateTable", &table(name, &keys.collect::<Vec<_>>()));
    // The server is slow in the first operation of each kind. These operations are made here, so that no member is
    // late.
    let key = r#"{"pk": {"S": "warm"}, "sk": {"S": "warm"}}"#;
    let of_table = |rest: &str| format!(r#"{{"TableName": "{name}", {rest}}}"#);
    ask(
        "PutItem",
        &of_table(r#""Item": {"pk": {"S": "warm"}, "sk": {"S": "warm"}, "body": {"B": "AAAA"}}"#),
    );
    ask(
        "GetItem",
        &of_table(&format!(r#""ConsistentRead": true, "Key": {key}"#)),
    );
    let condition = r#""pk = :pk AND sk BETWEEN :first AND :last""#;
    let values = r#"{":pk": {"S": "warm"}, ":first": {"S": "a"}, ":last": {"S": "z"}}"#;
    let query = format!(
        r#""ConsistentRead": true, "KeyConditionExpression": {condition}, "ExpressionAttributeValues": {values}"#
    );
    ask("Query", &of_table(&query));
    ask(
        "BatchWriteItem",
        &format!(r#"{{"RequestItems": {{"{name}": [{{"DeleteRequest": {{"Key": {key}}}}}]}}}}"#),
    );
}
