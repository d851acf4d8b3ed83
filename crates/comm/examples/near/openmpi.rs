//! Open MPI as a candidate, if it is installed (Debian: `libopenmpi-dev`, `openmpi-bin`).

use super::{Exchange, raw};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/comm/pingpong.c");

pub struct OpenMpi {
    run: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl OpenMpi {
    /// Starts two ranks on the first two processors, over these transports of Open MPI.
    pub fn start(transports: &str) -> Result<Self, Box<dyn Error>> {
        let program = std::env::current_exe()?.with_file_name("near-openmpi");
        let built = Command::new("mpicc")
            .args(["-O2", "-o"])
            .arg(&program)
            .arg(SOURCE)
            .status()?;
        if !built.success() {
            return Err(format!("mpicc: {built}").into());
        }
        let (_, processors) = raw::processors();
        let mut run = Command::new("mpirun")
            .args([
                "--allow-run-as-root",
                "-n",
                "2",
                "--bind-to",
                "core",
                "--cpu-set",
                &processors,
            ])
            .args(["--mca", "btl", transports, "--mca", "pml", "ob1"])
            .arg(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let orders = run.stdin.take();
        let answers = BufReader::new(run.stdout.take().ok_or("no pipe")?);
        let mut mpi = Self { run, orders, answers };
        // This exchange checks that Open MPI works, and makes Open MPI allocate its buffers.
        mpi.half_round_trip(4 << 20, 10)?;
        Ok(mpi)
    }
}

impl Drop for OpenMpi {
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.run.wait();
    }
}

impl Exchange for OpenMpi {
    fn name(&self) -> &'static str {
        "Open MPI"
    }

    fn half_round_trip(&mut self, bytes: usize, batches: u32) -> Result<f64, Box<dyn Error>> {
        let orders = self.orders.as_mut().ok_or("it has ended")?;
        writeln!(orders, "{bytes} {batches} {}", super::BATCH)?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        Ok(answer.trim().parse().map_err(|_| format!("mpirun said {answer:?}"))?)
    }
}
