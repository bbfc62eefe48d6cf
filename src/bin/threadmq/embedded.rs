//! A broker in this process, and a network before it that can be broken.

use threadmq::testkit::Network;
use threadmq::testkit::pulsar::Broker;

use crate::outcome::Failure;

pub struct Embedded {
    network: Network,
    // After the network, which is then the first to go.
    _broker: Broker,
}

impl Embedded {
    pub fn start() -> Result<Self, Failure> {
        let broker = Broker::start().map_err(|error| Failure::of("the embedded broker", &error))?;
        let network = Network::start(broker.address()).map_err(|error| Failure::of("the embedded network", &error))?;
        // Clients come back through the network after a look-up.
        broker.advertise(&network.url());
        Ok(Self { network, _broker: broker })
    }

    pub fn url(&self) -> String {
        self.network.url()
    }

    pub fn network(&self) -> &Network {
        &self.network
    }
}
