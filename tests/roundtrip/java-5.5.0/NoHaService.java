import org.apache.rocketmq.store.ha.DefaultHAService;

/** No replication: the broker would listen for replicas on every network interface, whatever its bindAddress says. */
public final class NoHaService extends DefaultHAService {
    @Override
    public void start() {
    }

    @Override
    public void shutdown() {
    }
}
