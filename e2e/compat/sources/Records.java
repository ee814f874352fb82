import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;

/** Records whose content their number and version give, replaced and compared by four threads
 * while the collector moves them: java Records RECORDS ROUNDS, prints "OK checksum". */
public class Records {
    static final int THREADS = 4;

    static long random(long x) { return x * 48271 % 2147483647L; }

    static String content(int i, int version) {
        long x = random(i * 31L + version * 7919L + 1);
        StringBuilder words = new StringBuilder();
        for (int n = 0; n < 6; n++) words.append(Long.toHexString(x = random(x))).append(' ');
        return "record " + i + " version " + version + " " + words.toString().repeat(8);
    }

    static final class Node {
        final int i;
        final String text;
        final byte[] bytes;
        final Node before;
        final Map<String, Integer> index = new HashMap<>();

        Node(int i, int version, Node before) {
            this.i = i;
            this.text = content(i, version);
            this.bytes = text.getBytes(StandardCharsets.UTF_8);
            this.before = before;
            for (int n = 0; n < 4; n++) index.put("key " + i + " " + n, version * 4 + n);
        }

        boolean is(int version) {
            String want = content(i, version);
            if (!text.equals(want) || !new String(bytes, StandardCharsets.UTF_8).equals(want))
                return false;
            for (int n = 0; n < 4; n++)
                if (index.get("key " + i + " " + n) != version * 4 + n) return false;
            return before == null || before.i == i - 1;
        }
    }

    static long work(int records, int rounds) throws Exception {
        Node[] nodes = new Node[records];
        int[] versions = new int[records];
        for (int i = 0; i < records; i++) nodes[i] = new Node(i, 0, null);
        long sum = 0;
        for (int round = 0; round < rounds; round++) {
            Thread.sleep(500);
            for (int i = 0; i < records; i++) {
                if (!nodes[i].is(versions[i])) {
                    System.out.println("BAD record " + i + " in round " + round);
                    System.exit(1);
                }
                sum = (sum * 31 + nodes[i].text.hashCode()) % 2147483647L;
                if (i % 3 == round % 3) {
                    // Old and young objects point at each other; chains stay two long.
                    Node near = i > 0 && nodes[i - 1].before == null ? nodes[i - 1] : null;
                    nodes[i] = new Node(i, ++versions[i], near);
                }
            }
            System.gc();
        }
        return sum;
    }

    public static void main(String[] words) throws Exception {
        int records = Integer.parseInt(words[0]), rounds = Integer.parseInt(words[1]);
        ExecutorService pool = Executors.newFixedThreadPool(THREADS);
        List<Future<Long>> sums = new ArrayList<>();
        for (int n = 0; n < THREADS; n++) sums.add(pool.submit(() -> work(records, rounds)));
        long sum = 0;
        for (Future<Long> one : sums) sum = sum * 7 + one.get();
        pool.shutdown();
        System.out.println("OK " + sum);
    }
}
