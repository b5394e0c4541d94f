import java.util.ArrayList;
import java.util.List;

/** A garbage-collected heap: short-lived objects, and a leak if asked for. Run with the source file as the argument. */
public final class Heap {
    /** The arguments are the leak in KB per second, and the short-lived MB per second. */
    public static void main(String[] args) throws InterruptedException {
        int leak = Integer.parseInt(args[0]);
        int shortLived = Integer.parseInt(args[1]);
        List<byte[]> kept = new ArrayList<>();
        while (true) {
            List<byte[]> now = new ArrayList<>();
            for (int i = 0; i < shortLived * 10; i++) {
                now.add(new byte[10 * 1024]);
            }
            if (leak > 0) {
                kept.add(new byte[leak * 102]);
            }
            Thread.sleep(100);
        }
    }
}
