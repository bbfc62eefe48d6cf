//! The `threadmq` command line tool: sends, receives, measures, and checks the promises against any cluster.
//!
//! It uses the crate's public API alone, so that it is also an example of what a program can do with it.

mod args;
mod broker;
mod consume;
mod demo;
mod embedded;
mod interrupt;
mod logger;
mod meter;
mod outcome;
mod pacer;
mod perf;
mod produce;
mod progress;
mod pulsar;
mod report;
#[cfg(feature = "rocketmq")]
mod rocketmq;
mod system;
mod tally;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use outcome::{EXIT_CODES, Failure, Outcome};

/// Blocking clients for message queues, from the command line.
#[derive(Debug, Parser)]
#[command(name = "threadmq", version, propagate_version = true, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Shows what the library logs, on standard error: -v warnings, -vv connections, -vvv everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Talks to an Apache Pulsar cluster
    #[command(subcommand)]
    Pulsar(Box<pulsar::Command>),
    /// Talks to an Apache RocketMQ 5 cluster
    #[cfg(feature = "rocketmq")]
    #[command(subcommand)]
    Rocketmq(Box<rocketmq::Command>),
    /// Runs a broker inside this process, for tests and trials; it keeps messages in memory
    #[command(subcommand)]
    Broker(broker::Command),
    /// Shows in half a minute what happens to sends when a connection goes dead: needs no server
    Demo(demo::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    logger::install(cli.verbose);
    let result = interrupt::install().and_then(|()| run(cli.command));
    match result {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::Bad) => ExitCode::from(1),
        Err(failure) => {
            eprintln!("threadmq: {failure}");
            ExitCode::from(3)
        }
    }
}

fn run(command: Command) -> Result<Outcome, Failure> {
    match command {
        Command::Pulsar(command) => pulsar::run(*command),
        #[cfg(feature = "rocketmq")]
        Command::Rocketmq(command) => rocketmq::run(*command),
        Command::Broker(command) => broker::run(command),
        Command::Demo(args) => demo::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
