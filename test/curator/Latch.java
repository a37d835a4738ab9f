import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderLatchListener;
import org.apache.curator.retry.RetryForever;

/**
 * A process that stands for leader with Curator: Latch CONNECT PATH ID MILLISECONDS. It says "leads" and "lost" when that changes, answers "who" with the
 * leader's ID as Curator sees it, and gives up at "close" or at the end of its input.
 */
public final class Latch {
    public static void main(String[] args) throws Exception {
        int timeout = Integer.parseInt(args[3]);
        CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], timeout, timeout, new RetryForever(100));
        client.start();
        LeaderLatch latch = new LeaderLatch(client, args[1], args[2]);
        latch.addListener(new LeaderLatchListener() {
            @Override
            public void isLeader() {
                say("leads");
            }

            @Override
            public void notLeader() {
                say("lost");
            }
        });
        latch.start();
        say("started");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null && !line.equals("close"); line = in.readLine()) {
            if (line.equals("who")) {
                say("leader " + latch.getLeader().getId());
            }
        }
        latch.close();
        client.close();
        say("closed");
    }

    private static synchronized void say(String text) {
        System.out.println(text);
        System.out.flush();
    }
}
